"""Exact models: a row has the same bits decoded, prefilled, scored and trained."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.activations import GELUTanh, SiLUActivation

from lockstep.models.attention import EXACT
from lockstep.models.exact.attention import KEYS
from lockstep.models.exact.chunks import count_map_chunks
from lockstep.models.exact.experts import EXPERTS, ROUTERS, compute_experts, route_tokens
from lockstep.models.exact.linear import gelu_tanh, silu
from lockstep.models.exact.norm import is_rms_norm, normalize_module
from lockstep.models.exact.sharded import apply_linear
from lockstep.models.families.registry import EXACT_TYPES, has_exact_layers
from lockstep_logprobs.kernel import runs_fused

_ACTIVATIONS = ("silu", "gelu_pytorch_tanh")

_ROTARY = ("default", "linear", "llama3", "yarn")
"""Rotary embedding types whose angles depend only on the position."""


def make_exact(lm: PreTrainedModel) -> None:
    """Makes a model compute exactly, in place; `explain_inexact` tells which models support it."""
    fused = runs_fused(torch.empty(0, device=lm.device))
    for name, module in lm.named_modules():
        kind = type(module).__name__
        if isinstance(module, nn.Linear):
            forward = partial(apply_linear, module, count_map_chunks(lm.config, name))
        elif isinstance(module, SiLUActivation | nn.SiLU):
            forward = silu
        elif isinstance(module, GELUTanh):
            forward = gelu_tanh
        elif kind in ROUTERS:
            forward = partial(route_tokens, module)
        elif is_rms_norm(module) and fused:
            forward = partial(normalize_module, module)
        elif kind in EXPERTS:
            forward = partial(compute_experts, module)
        else:
            continue
        vars(module)["forward"] = forward
    lm.set_attn_implementation(EXACT)


def is_exact(lm: PreTrainedModel) -> bool:
    """True if a model computes exactly."""
    return lm.config._attn_implementation == EXACT


def find_multiple(lm: PreTrainedModel) -> int:
    """Multiple to which rows and keys should be padded, so that a model's kernels need not."""
    if is_exact(lm):
        return KEYS
    return 1


def explain_inexact(config: PreTrainedConfig) -> str | None:
    """Explains why a model cannot be computed exactly; None if it can."""
    fields = config.get_text_config().to_dict()
    if not has_exact_layers(config):
        return (
            f"{config.model_type} models are not verified as exact; verified types: "
            f"{', '.join(EXACT_TYPES)}"
        )
    act = fields.get("hidden_activation") or fields["hidden_act"]
    if act not in _ACTIVATIONS:
        return (
            f"the model's activation is {act}; exact mode supports only "
            f"{' and '.join(_ACTIVATIONS)}"
        )
    rope = fields.get("rope_parameters") or {}
    parts = [rope, *(part for part in rope.values() if isinstance(part, dict))]
    kinds = {part.get("rope_type", "default") for part in parts} - set(_ROTARY)
    if kinds:
        return f"the model's rotary positions ({', '.join(kinds)}) depend on the batch length"
    return None
