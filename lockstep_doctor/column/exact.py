"""Values that are exactly something: zero, a constant, a bound, a number of few digits. Asked before all else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from lockstep_doctor.column.predicates import Bools, Floats
from lockstep_doctor.statistics import Compared

FAR = 5.0
"""Multiple of the usual difference from which a token counts as hit."""

LEAST_SIZE = 1e-3
"""Numbers below it have too few digits to say anything."""

_LEAST_TOKENS = 5
_MOST_VALUES = 4
_SINGLE = 2.0**-23
"""Relative spacing of fp32, in which columns are computed."""


def measure_excess(sides: Compared, spacing: Floats | float = 0.0) -> Floats:
    """Returns of each token how many times the usual difference it is off, [M]; infinite where one side has no number.

    Rounding moves the log-probability of a token in proportion to 1 − p, and by the last digit of what it is kept in.
    What is usual is taken from the quarter of the tokens that are least off, so that damage to most of them does not
    count as usual.

    Args:
        spacing: Of the numbers that both are kept in, where it is coarser than fp32's.
    """
    off = sides.delta.abs().numpy()
    surprise = torch.maximum(-sides.train, -sides.infer).nan_to_num(0.0, 50.0).clamp(0.0, 50.0).numpy()
    shape, least = -np.expm1(-surprise) + 1e-6, 3e-6 + _SINGLE * surprise + spacing
    usual = np.quantile((off / shape)[np.isfinite(off)], 0.25) / 0.319 if np.isfinite(off).any() else 0.0
    return off / (usual * shape + least)


def find_repeated(own: Floats, other: Floats, excess: Floats) -> Iterator[tuple[str, str, Bools]]:
    """Yields the values that tokens of one side have again and again where they are far off.

    Args:
        own: The side that is asked about, [M].
        excess: From `measure_excess`.

    Yields:
        The kind of finding, the value in words, and the tokens that have it.
    """
    far = (excess > FAR) & np.isfinite(own)
    values, count = np.unique(own[far], return_counts=True)
    for value in values[np.argsort(-count, kind="stable")][: min(_MOST_VALUES, int((count >= _LEAST_TOKENS).sum()))]:
        tokens = far & (own == value)
        if np.mean(other[tokens] == other[tokens][0]) < 0.5:
            yield _name_value(float(value), own, other, tokens)


def _name_value(value: float, own: Floats, other: Floats, tokens: Bools) -> tuple[str, str, Bools]:
    """A value that many tokens have: a bound, where the other side lies beyond it there and nowhere else."""
    if value == 0.0:
        return "exactly 0", "exactly 0", tokens
    for kind, sign in (("floor", 1), ("ceiling", -1)):
        beyond = sign * other < sign * value
        at_end = sign * value <= np.min(sign * own[np.isfinite(own)])
        if at_end and beyond[tokens].all() and np.mean(own[beyond] == value) > 0.9:
            return kind, f"cut off at {value:.6g}, its {kind}", own == value
    return "constant", f"exactly {value:.6g}", own == value


@dataclass(frozen=True)
class ValueGrid:
    """A format that columns may be kept in.

    Attributes:
        has: Which numbers are of it, [M].
        spacing: How far apart they are there, [M].
    """

    name: str
    has: Callable[[Floats], Bools]
    spacing: Callable[[Floats], Floats]


def find_grids(own: Floats, free: Bools) -> Iterator[tuple[ValueGrid, Bools]]:
    """Yields the grids that some of the free tokens are of, the coarsest first, and which tokens these are."""
    free = free & np.isfinite(own) & (np.abs(own) > LEAST_SIZE)
    for grid in _GRIDS:
        tokens = free & grid.has(own)
        _, count = np.unique(own[tokens], return_counts=True)
        if count.sum() >= max(_LEAST_TOKENS, 0.01 * own.size) and count.max() <= 0.5 * count.sum():
            yield grid, tokens


def _digits_of(name: str, dtype: torch.dtype) -> ValueGrid:
    def has(x: Floats) -> Bools:
        return torch.from_numpy(x).to(dtype).double().numpy() == x

    return ValueGrid(f"numbers of {name}", has, lambda x: np.abs(x) * torch.finfo(dtype).eps)


def _decimals(digits: int) -> ValueGrid:
    def has(x: Floats) -> Bools:
        near = np.round(x, digits)
        return (near == x) | (near.astype(np.float32).astype(np.float64) == x)

    return ValueGrid(f"numbers of {digits} decimal{'s' * (digits > 1)}", has, lambda x: np.full_like(x, 10.0**-digits))


_GRIDS = (
    *map(_decimals, (1, 2)),
    _digits_of("bf16", torch.bfloat16),
    _digits_of("fp16", torch.float16),
    *map(_decimals, (3, 4, 5)),
)
