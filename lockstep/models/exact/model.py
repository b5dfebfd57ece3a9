"""Exact models: a row has the same bits decoded, prefilled, scored and trained."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.activations import GELUTanh, SiLUActivation

from lockstep.models.attention import EXACT
from lockstep.models.exact.attention import KEYS
from lockstep.models.exact.experts import EXPERTS, ROUTERS, compute_experts, route_tokens
from lockstep.models.exact.linear import exact_product, gelu_tanh, silu
from lockstep.models.exact.norm import is_rms_norm, normalize_module
from lockstep.models.families.registry import EXACT_TYPES, has_exact_layers
from lockstep_logprobs.kernel import runs_fused

_ACTIVATIONS = ("silu", "gelu_pytorch_tanh")

_ROTARY = ("default", "linear", "llama3", "yarn")
"""Rotary embedding types whose angles depend only on the position."""


def make_exact(lm: PreTrainedModel) -> None:
    """Makes a model compute exactly, in place; `explain_inexact` tells which models support it."""
    for module in lm.modules():
        forward = _find_exact_forward(module)
        if forward is not None:
            vars(module)["forward"] = forward
    lm.set_attn_implementation(EXACT)


def is_exact(lm: PreTrainedModel) -> bool:
    """True if a model computes exactly."""
    return lm.config._attn_implementation == EXACT


def find_multiple(lm: PreTrainedModel) -> int:
    """The multiple to which a model's rows and keys should be padded; its kernels then add none."""
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


def _find_exact_forward(module: nn.Module) -> Callable[..., Any] | None:
    """The function that computes a module exactly; None if its own forward does."""
    if isinstance(module, nn.Linear):
        return partial(_apply_linear, module)
    if isinstance(module, SiLUActivation | nn.SiLU):
        return silu
    if isinstance(module, GELUTanh):
        return gelu_tanh
    if type(module).__name__ in ROUTERS:
        return partial(route_tokens, module)
    if is_rms_norm(module) and runs_fused(module.get_parameter("weight")):
        return partial(normalize_module, module)
    if type(module).__name__ in EXPERTS:
        return partial(compute_experts, module)
    return None


def _apply_linear(module: nn.Linear, x: Tensor) -> Tensor:
    return exact_product(x, module.weight, module.bias)
