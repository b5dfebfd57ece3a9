"""Models computed exactly: every row has the same bits decoded, prefilled, scored and trained."""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.activations import SiLUActivation

from lockstep.models.attention import EXACT, NAME
from lockstep.models.exact.attention import KEYS
from lockstep.models.exact.linear import linear, silu
from lockstep.models.families.registry import EXACT_TYPES, has_exact_layers

_ROTARY = ("default", "linear", "llama3", "yarn")
"""Rotary positions whose angles depend on nothing but the position."""


def make_exact(lm: PreTrainedModel) -> None:
    """Makes a model compute exactly, in place; `explain_inexact` says of which models that is true."""
    for module in lm.modules():
        if isinstance(module, nn.Linear):
            vars(module)["forward"] = partial(_map, module)
        elif isinstance(module, SiLUActivation | nn.SiLU):
            vars(module)["forward"] = silu
    lm.set_attn_implementation(EXACT)


def make_inexact(lm: PreTrainedModel) -> None:
    """Undoes `make_exact`."""
    for module in lm.modules():
        if isinstance(module, nn.Linear | SiLUActivation | nn.SiLU):
            vars(module).pop("forward", None)
    lm.set_attn_implementation(NAME)


def is_exact(lm: PreTrainedModel) -> bool:
    """True if a model computes exactly."""
    return lm.config._attn_implementation == EXACT


def find_multiple(lm: PreTrainedModel) -> int:
    """The number of which a model's rows and keys should be multiples, so that its kernels need not fill them up."""
    return KEYS if is_exact(lm) else 1


def explain_inexact(config: PreTrainedConfig) -> str | None:
    """Says why a model cannot be computed exactly; None: it can."""
    text = config.get_text_config()
    if not has_exact_layers(config):
        return f"a {config.model_type} has not been shown to be exact; these are: {', '.join(EXACT_TYPES)}"
    if text.hidden_act != "silu":
        return f"the model's hidden_act is {text.hidden_act}, and only silu is written exactly"
    kind = (text.rope_parameters or {}).get("rope_type", "default")
    if kind not in _ROTARY:
        return f"the model's rotary positions ({kind}) depend on the length of a batch"
    return None


def _map(module: nn.Linear, x: Tensor) -> Tensor:
    return linear(x, module.weight, module.bias)
