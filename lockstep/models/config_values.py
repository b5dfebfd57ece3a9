"""Checks for impossible numbers in a model's configuration.

They run before `transformers` reads it: some such values make it hang or divide by zero, and others
fail only in the first forward pass.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

_LAYERS = re.compile(r"num_hidden_layers|n_layers?")
_MOST_LAYERS = 10_000
"""Limit on layers; a larger number is a typo, with which `transformers` would work for hours."""
_SIZE = re.compile(
    r"hidden_size|d_model|n_embd|(num_|n_)(attention_|key_value_)?heads?|head_dim|vocab_size|intermediate_size|n_inner|"
    r"max_position_embeddings|n_positions"
)
"""Sizes that must be integers ≥ 1."""
_NUMBER = re.compile(r"rope_theta|factor|(\w+_)?eps(ilon)?")
"""Numbers that must be finite and above 0; epsilons may be 0."""
_ROPE = re.compile(r"rope_(parameters|scaling)")


def find_fault(fields: Mapping[str, Any]) -> str | None:
    """Explains which field has an impossible value; None if all are possible."""
    for name, value in _walk_fields(fields):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if _LAYERS.fullmatch(name) and is_number and not 1 <= value <= _MOST_LAYERS:
            wanted = f"from 1 to {_MOST_LAYERS:,}"
        elif _SIZE.fullmatch(name) and is_number and value < 1:
            wanted = "a positive integer"
        elif _NUMBER.fullmatch(name) and value is not None:
            if is_number and 0 <= value < math.inf and (value or "eps" in name):
                continue
            wanted = "a finite positive number"
        else:
            continue
        return f"{name} is {json.dumps(value)}, but must be {wanted}; correct it"
    return None


def _walk_fields(fields: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Fields of a configuration, of its text model, and of its rotary embedding."""
    for name, value in fields.items():
        yield name, value
        within = name == "text_config" or _ROPE.fullmatch(name)
        # rotary embedding of one layer type
        if isinstance(value, dict) and (within or {"rope_type", "rope_theta"} & value.keys()):
            yield from _walk_fields(value)
