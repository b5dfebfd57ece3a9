"""Checks for impossible values in a model's configuration, before `transformers` reads it, which would hang on some,
divide by others, and let a few through to the first forward pass.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch

_MOST = (
    (re.compile(r"layers?$|layer_types"), 10_000),
    (re.compile("experts|num_labels"), 100_000),
    (re.compile(r"(size|dim|_embd|_inner|heads)$"), 2**31),
)
"""Largest sizes, by name; `transformers` builds layers one by one, for hours."""
_SIZE = re.compile(
    r"(num_hidden_layers|n_layers?|hidden_size|d_model|n_embd|(num_|n_)(attention_|key_value_)?heads?|head_dim|"
    r"vocab_size|intermediate_size|n_inner|max_position_embeddings|n_positions)"
)
"""Names of sizes that are whole numbers from 1 on."""
_NUMBER = re.compile(r"rope_theta|factor|(\w+_)?eps(ilon)?")
"""Names of numbers that must be finite and above 0; epsilons may be 0."""
_ROPE = re.compile(r"rope_(parameters|scaling)")


def find_fault(fields: Mapping[str, Any]) -> str | None:
    """Says which field has a value that no model can have; None: none has."""
    faults = (_fault(name, value) for name, value in _walk(fields))
    return next((fault for fault in faults if fault is not None), None)


def find_field(fields: Mapping[str, Any], value: object) -> str | None:
    """The field that has this text, by its name; None: there is none."""
    return next((name for name, held in _walk(fields) if isinstance(held, str) and held == value), None)


def _walk(fields: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Fields of a configuration, of its text model, and of its rotary embedding."""
    for name, value in fields.items():
        yield name, value
        within = name == "text_config" or _ROPE.fullmatch(name)
        if isinstance(value, dict) and (within or {"rope_type", "rope_theta"} & value.keys()):  # of one type of layer
            yield from _walk(value)


def _fault(name: str, value: object) -> str | None:
    if name == "return_dict" and value is False:
        return "return_dict is false, and outputs are read by their names; take it out"
    if name == "_attn_implementation" and value is not None:
        return "_attn_implementation names an attention, and Lockstep has its own; take it out"
    if name in ("dtype", "torch_dtype") and isinstance(value, str):
        known = isinstance(getattr(torch, value.removeprefix("torch."), None), torch.dtype)
        return None if known else f"{name} is {value!r}, which torch does not have; correct it"
    if isinstance(value, list):
        return _excess(name, len(value))
    if value is None:
        return None
    size = value if isinstance(value, int) and not isinstance(value, bool) else None
    if _SIZE.fullmatch(name) and size is not None and size < 1:
        return f"{name} is {json.dumps(value)}, but should be a whole number above 0; correct it"
    if _NUMBER.fullmatch(name):
        finite = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
        if not finite or (not value and "eps" not in name):
            return f"{name} is {json.dumps(value)}, but should be a finite number above 0; correct it"
    return None if size is None else _excess(name, size)


def _excess(name: str, size: int) -> str | None:
    most = next((most for pattern, most in _MOST if pattern.search(name)), None)
    if most is None or size <= most:
        return None
    return f"{name} is {size:,}, and no model has more than {most:,}; correct it"
