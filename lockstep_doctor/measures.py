"""Describes how a wrong tensor relates to the right one, and where they differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import isfinite

import torch
from torch import Tensor

_FITS = 0.02
"""Largest share of the difference that a fit may leave."""
_HITS = 1e-3
"""Share of the largest difference below which a position or channel counts as equal."""
_FEW = 0.5
_ROW = 1e-5
"""Relative error above which a position differs."""

BROKEN = 1e3
"""Relative error reported if a value is finite in only one engine."""


def find_error(right: Tensor, own: Tensor) -> tuple[float, int]:
    """Returns the relative error and the first position that differs; equal infinities, or NaN in
    both, count as equal.
    """
    first, second = _flatten_to_rows(right, own)
    off = (first - second).masked_fill((first == second) | (first.isnan() & second.isnan()), 0.0)
    scale = float(first.nan_to_num(0.0, 0.0, 0.0).square().mean().sqrt()) or 1.0
    rows = (~(off.square().mean(-1).sqrt() <= _ROW * scale)).nonzero()
    error = float(off.square().mean().sqrt()) / scale
    return error if isfinite(error) else BROKEN, int(rows[0, 0]) if len(rows) else 0


def _flatten_to_rows(*values: Tensor) -> list[Tensor]:
    """Values as float64 matrices with one row per position; a vector has rows of one number."""
    width = values[0].shape[-1] if values[0].ndim > 1 else 1
    return [x.detach().double().cpu().reshape(-1, width) for x in values]


def describe_difference(right: Tensor, own: Tensor, tolerance: float) -> Iterator[str]:
    """Yields descriptions of how a wrong value differs from the right one.

    Args:
        right: The right value; first axis positions, last axis channels.
        own: The wrong value.
        tolerance: Relative error that rounding explains.
    """
    if right.dtype != own.dtype:
        yield f"it is {name_type(own)}, and should be {name_type(right)}"
    if right.numel() != own.numel():
        yield f"it has {own.numel()} numbers, and should have {right.numel()}"
        return
    first, second = _flatten_to_rows(right, own)
    if not bool(second.isfinite().all()):
        rows = (~second.isfinite()).any(-1).nonzero()[:, 0]
        yield f"it is not finite at {name_places(rows.tolist(), len(second), 'position')}"
        return
    off = second - first
    if not float(off.abs().max()):
        return
    noise = tolerance * float(first.square().mean().sqrt())
    fits = max(_FITS, noise / float(off.square().mean().sqrt()))
    made = next(_find_transformations(first, second, off, fits), None)
    if made is not None:
        yield made
    for axis, what in ((1, "position"), (0, "channel")):
        size = off.square().mean(axis).sqrt()
        hit = (size > max(_HITS * float(size.max()), noise)).nonzero()[:, 0].tolist()
        if 0 < len(hit) < len(size):
            yield f"it differs at {name_places(hit, len(size), what)}"


def _find_transformations(first: Tensor, second: Tensor, off: Tensor, fits: float) -> Iterator[str]:
    """Yields simple transformations of the right value that explain the wrong one, simplest
    first.
    """
    if not float(second.abs().max()):
        yield "it is zero"
    square = float(first.square().sum())
    scale = 0.0
    if square:
        scale = float((first * second).sum()) / square
    left = _find_unexplained_share(second - scale * first, off)
    if left < fits:
        yield f"it is {scale:.4g} times what it should be ({left:.1%} of the difference left)"
    if (
        _find_unexplained_share(second.flatten().sort().values - first.flatten().sort().values, off)
        < fits
    ):
        yield "it has the right numbers in another order"
    step = float(torch.finfo(torch.bfloat16).eps)
    if bool((off.abs() <= step * first.abs()).all()) and torch.equal(
        second, second.bfloat16().double()
    ):
        yield "it is rounded to bfloat16"


def _find_unexplained_share(left: Tensor, off: Tensor) -> float:
    size = float(off.square().sum().sqrt())
    if size:
        return float(left.square().sum().sqrt()) / size
    return float("inf")


def name_places(hit: Sequence[int], count: int, what: str) -> str:
    """Describes indices as a range, a regular step, or the first few."""
    steps = {b - a for a, b in pairwise(hit)}
    if len(hit) == 1:
        return f"{what} {hit[0]} of {count}"
    if len(steps) == 1:
        (step,) = steps
        every = ""
        if step != 1:
            every = f", each {step}th"
        return f"{what}s {hit[0]} to {hit[-1]}{every} of {count}"
    if len(hit) > _FEW * count:
        missing = sorted(set(range(count)) - set(hit))
        return f"all of {count} {what}s but {join_some(missing)}"
    return f"{len(hit)} of {count} {what}s: {join_some(hit)}"


def join_some(values: Sequence[object], most: int = 8) -> str:
    """Returns the first `most` values as text."""
    return ", ".join(map(str, values[:most])) + (", …" if len(values) > most else "")


def name_type(x: Tensor) -> str:
    """Returns the type of a tensor, such as `bfloat16`."""
    return str(x.dtype).removeprefix("torch.")
