"""Compares values as sorted numbers, without masked ones."""

from __future__ import annotations

import torch
from torch import Tensor

MASKED = 3e4
"""Magnitude above which a number marks a masked entry and is ignored."""


def same_values(a: Tensor, b: Tensor, tolerance: float) -> bool:
    """True for the same numbers in any order, so that a transposed or reshaped tensor is the same
    value.
    """
    return _count_numbers(a) == _count_numbers(b) and are_close(
        sort_values(a), sort_values(b), tolerance
    )


def _count_numbers(value: Tensor) -> int:
    """Number of compared numbers; 0 or less if all are masked or zero."""
    if value.is_floating_point():
        unmasked = value.abs() < MASKED
    else:
        unmasked = True
    return int(((value != 0) & unmasked).sum()) or -value.numel()


def find_kind(value: Tensor) -> tuple[bool, int]:
    """Returns properties that equal values share: whether they are a mask, and their number of
    compared numbers.
    """
    return value.dtype == torch.bool, _count_numbers(value)


def sort_values(value: Tensor) -> Tensor:
    """Sorts the numbers of a value without masked ones, and without zeros, which may be padding."""
    flat = value.detach().flatten().double()
    unmasked = flat[flat.abs() < MASKED]
    kept = unmasked[unmasked != 0]
    return (kept if len(kept) else unmasked).sort().values


def are_close(first: Tensor, second: Tensor, tolerance: float) -> bool:
    """True if sorted numbers have equal count and differ by at most `tolerance` relative to their
    RMS.
    """
    if first.numel() != second.numel():
        return False
    if not second.numel():
        return True
    scale = float(second.square().mean().sqrt())
    return float((first - second).square().mean().sqrt()) <= tolerance * scale
