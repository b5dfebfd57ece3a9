"""The last layer of a decoder, computed only for the tokens whose states are read.

Other layers need the states of all tokens for the keys and values of the next layer; only the head
reads the last layer's states, and it scores responses, not prompts. Skipped tokens had no gradient
either. Rows do not depend on their neighbors in exact models, so no log-probability changes by a
bit; sums over rows, such as a weight's gradient, are rounded differently.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from lockstep.models.families.registry import find_family

_MARK = "takes_read"
"""Attribute of a backbone: whether its last layer takes `read`; unset until decided."""


def compute_needed_states(lm: PreTrainedModel) -> None:
    """Makes the last layer accept `read`, if the family's layers are plain. Does nothing the second
    time, because the layer may have been wrapped since.
    """
    if find_family(lm.config).plain and _MARK not in vars(lm.base_model):
        last = _find_last_layer(lm)
        vars(last)["forward"] = partial(compute_layer, last)
        vars(lm.base_model)[_MARK] = True


def compute_all_states(lm: PreTrainedModel) -> None:
    """Undoes `compute_needed_states` for good: compiled layers would recompile when a single state
    is read.
    """
    if takes_read(lm.base_model):
        vars(_find_last_layer(lm)).pop("forward")
    vars(lm.base_model)[_MARK] = False


def takes_read(backbone: nn.Module) -> bool:
    """True if the backbone accepts `read`, the indices of the last states to compute."""
    return vars(backbone).get(_MARK, False)


def _find_last_layer(lm: PreTrainedModel) -> nn.Module:
    backbone: Any = lm.base_model
    last = backbone.layers[-1]
    assert isinstance(last, nn.Module)
    return last


def compute_layer(
    layer: Any, hidden_states: Tensor, *, read: Tensor | None = None, **others: Any
) -> Tensor:
    """States of a layer [1, n, D], or of its tokens `read` only [1, m, D]."""
    if read is None:
        return type(layer).forward(layer, hidden_states, **others)
    attended, _ = layer.self_attn(hidden_states=layer.input_layernorm(hidden_states), **others)
    read_states = (hidden_states + attended).index_select(1, read)
    return read_states + layer.mlp(layer.post_attention_layernorm(read_states))
