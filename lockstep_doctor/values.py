"""Same values: the same numbers in any order, but for masked ones."""

from __future__ import annotations

import torch
from torch import Tensor

MASKED = 3e4
"""A number so large stands for a masked place: it says nothing about the others."""


def same_values(a: Tensor, b: Tensor, tolerance: float) -> bool:
    """True for the same numbers in any order, so that a transposed or reshaped tensor is the same
    value.
    """
    return _count(a) == _count(b) and are_close(sort_values(a), sort_values(b), tolerance)


def _count(value: Tensor) -> int:
    """Count of the numbers that are compared: 0 or less where all are masked, or zeros."""
    if value.is_floating_point():
        unmasked = value.abs() < MASKED
    else:
        unmasked = True
    return int(((value != 0) & unmasked).sum()) or -value.numel()


def find_kind(value: Tensor) -> tuple[bool, int]:
    """Returns what the same values share: whether they are a mask, and their count."""
    return value.dtype == torch.bool, _count(value)


def sort_values(value: Tensor) -> Tensor:
    """Sorts the numbers of a value, but for the masked ones, and zeros, which may be padding."""
    flat = value.detach().flatten().double()
    unmasked = flat[flat.abs() < MASKED]
    kept = unmasked[unmasked != 0]
    return (kept if len(kept) else unmasked).sort().values


def are_close(first: Tensor, second: Tensor, tolerance: float) -> bool:
    """True if sorted numbers are as many, and the same up to a share of their size."""
    if first.numel() != second.numel():
        return False
    if not second.numel():
        return True
    scale = float(second.square().mean().sqrt())
    return float((first - second).square().mean().sqrt()) <= tolerance * scale
