"""Columns of numbers as bytes that compress well and that a page reads without parsing.

    length of the header, uint32 | header, JSON in ASCII | column | column | …        little-endian

A column of n numbers is n float32, their lowest bytes first, then all second bytes, and so on: bytes of one kind are
alike, and gzip finds that. Whole numbers are exact to 2²⁴; a number beyond float32 is infinite.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

_DROPPED_BITS = 11  # of the 23 stored bits of a float32's significand


@np.errstate(over="ignore")
def pack(header: Mapping[str, Any], columns: Mapping[str, Sequence[Any] | NDArray[Any]]) -> bytes:
    """Lays out a header and columns of one length; `page/data.js` reads them.

    The header gets `columns`, their names in order, and `count`, their length.
    """
    arrays = {name: np.asarray(column, np.dtype("<f4")) for name, column in columns.items()}
    counts = {len(array) for array in arrays.values()}
    if len(counts) > 1:
        raise ValueError(f"columns of one table have one length, but these have {sorted(counts)}")
    head = json.dumps({**header, "columns": list(arrays), "count": max(counts, default=0)}).encode()
    planes = [array.view(np.uint8).reshape(-1, 4).T.tobytes() for array in arrays.values()]
    return b"".join([len(head).to_bytes(4, "little"), head, *planes])


@np.errstate(over="ignore")
def shorten(values: ArrayLike) -> NDArray[np.float32]:
    """The numbers to about four digits, in floats whose last bits are zero and so cost nothing when compressed."""
    bits = np.asarray(values, np.float32).view(np.uint32)
    half, kept = np.uint32(1 << (_DROPPED_BITS - 1)), np.uint32(0xFFFFFFFF << _DROPPED_BITS & 0xFFFFFFFF)
    return ((bits + half) & kept).view(np.float32)
