"""The last layer of a decoder, behind its attention computed only where its states are read.

Other layers' states are keys and values of those that follow; the last one's are read by the head alone, which scores
responses and no prompts. What is left out had no gradient either. Rows do not depend on their neighbors in exact
models, so no log-probability changes by a bit; sums over rows, such as a weight's gradient, are rounded differently.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from lockstep.models.families.registry import family_of


def read_less(lm: PreTrainedModel) -> bool:
    """Lets the last layer take `read`, if the family's layers are plain; false where they are not."""
    if family_of(lm.config).plain is None:
        return False
    backbone: Any = lm.base_model
    last = backbone.layers[-1]
    vars(last).setdefault("forward", partial(compute_layer, last))
    return True


def reads_less(backbone: Any) -> bool:
    """True if nothing was put over a last layer that was made to `read_less`: compiled, it would be one more graph."""
    forward = vars(backbone.layers[-1]).get("forward")
    return isinstance(forward, partial) and forward.func is compute_layer


def compute_layer(layer: Any, hidden_states: Tensor, *, read: Tensor | None = None, **others: Any) -> Tensor:
    """States of a layer [1, n, D], or of its tokens `read` alone [1, m, D]."""
    if read is None:
        return type(layer).forward(layer, hidden_states, **others)
    attended, _ = layer.self_attn(hidden_states=layer.input_layernorm(hidden_states), **others)
    read_states = (hidden_states + attended).index_select(1, read)
    return read_states + layer.mlp(layer.post_attention_layernorm(read_states))
