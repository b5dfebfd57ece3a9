"""Values that are exactly something: zero, a constant, a bound, a number of few digits. Asked before all else."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from lockstep_doctor.column.predicates import Bools, Floats

FAR = 5.0
"""Multiple of the usual difference from which a token counts as hit."""

LEAST_SIZE = 1e-3
"""Numbers below it have too few digits to say anything."""

_LEAST_TOKENS = 5
_MOST_VALUES = 4
_SINGLE = 2.0**-23
"""Relative spacing of fp32, in which columns are computed."""


@dataclass(frozen=True)
class ExactValue:
    """A value, or numbers of few digits, that tokens of one side have.

    Attributes:
        kind: `zero`, `constant`, `floor`, `ceiling` or `grid`.
        what: In words.
        tokens: Which have it, [M].
    """

    kind: str
    what: str
    tokens: Bools


def measure_excess(train: Floats, infer: Floats, spacing: Floats | float = 0.0) -> Floats:
    """Returns of each token how many times the usual difference it is off, [M]; infinite where one side has no number.

    Rounding moves the log-probability of a token in proportion to 1 − p, and by the last digit of what it is kept in.
    What is usual is taken from the quarter of the tokens that are least off, so that damage to most of them does not
    count as usual.

    Args:
        train: Log-probabilities of one side.
        infer: Of the other one.
        spacing: Of the numbers that both are kept in, where it is coarser than fp32's.
    """
    with np.errstate(invalid="ignore"):
        off = np.where(train == infer, 0.0, np.abs(train - infer))
    off = np.nan_to_num(off, nan=math.inf, posinf=math.inf)
    surprise = np.clip(np.nan_to_num(np.maximum(-train, -infer), nan=0.0, posinf=50.0), 0.0, 50.0)
    shape, least = -np.expm1(-surprise) + 1e-6, 3e-6 + _SINGLE * surprise + spacing
    usual = np.quantile((off / shape)[np.isfinite(off)], 0.25) / 0.319 if np.isfinite(off).any() else 0.0
    return off / (usual * shape + least)


def find_repeated(own: Floats, other: Floats, excess: Floats) -> Iterator[ExactValue]:
    """Yields the values that tokens of one side have again and again where they are far off.

    Args:
        own: The side that is asked about, [M].
        other: The other one.
        excess: From `measure_excess`.
    """
    far = (excess > FAR) & np.isfinite(own)
    values, count = np.unique(own[far], return_counts=True)
    for value in values[np.argsort(-count, kind="stable")][: min(_MOST_VALUES, int((count >= _LEAST_TOKENS).sum()))]:
        tokens = far & (own == value)
        if np.mean(other[tokens] == other[tokens][0]) < 0.5:
            yield _name_value(float(value), own, other, tokens)


def find_grids(own: Floats, free: Bools) -> Iterator[ExactValue]:
    """Yields the numbers of few digits that some of the free tokens are, the coarsest first."""
    free = free & np.isfinite(own) & (np.abs(own) > LEAST_SIZE)
    for name, lies, _ in _GRIDS:
        tokens = free & lies(own)
        _, count = np.unique(own[tokens], return_counts=True)
        if count.sum() >= max(_LEAST_TOKENS, 0.01 * own.size) and count.max() <= 0.5 * count.sum():
            yield ExactValue("grid", name, tokens)


def space_grid(name: str, own: Floats) -> Floats:
    """Returns the distance between neighbouring numbers of a grid, [M]."""
    return next(spacing for grid, _, spacing in _GRIDS if grid == name)(np.abs(np.nan_to_num(own)))


def _name_value(value: float, own: Floats, other: Floats, tokens: Bools) -> ExactValue:
    """A value that many tokens have: a bound, where the other side lies beyond it there and nowhere else."""
    if value == 0.0:
        return ExactValue("zero", "exactly 0", tokens)
    everywhere = own == value
    own_finite = own[np.isfinite(own)]
    for kind, sign in (("floor", 1), ("ceiling", -1)):
        beyond = sign * other < sign * value
        at_end = sign * value <= np.min(sign * own_finite)
        if at_end and beyond[tokens].all() and np.mean(own[beyond] == value) > 0.9:
            return ExactValue(kind, f"cut off at {value:.6g}, its {kind}", everywhere)
    return ExactValue("constant", f"exactly {value:.6g}", everywhere)


def _in_bf16(x: Floats) -> Bools:
    bits = x.astype(np.float32)
    return (bits == x) & (bits.view(np.uint32) & 0xFFFF == 0)


def _in_fp16(x: Floats) -> Bools:
    with np.errstate(over="ignore"):
        return x.astype(np.float16).astype(np.float64) == x


def _in_digits(digits: int) -> Callable[[Floats], Bools]:
    def lies(x: Floats) -> Bools:
        near = np.round(x, digits)
        return (near == x) | (near.astype(np.float32).astype(np.float64) == x)

    return lies


def _decimals(digits: int) -> tuple[str, Callable[[Floats], Bools], Callable[[Floats], Floats]]:
    name = f"numbers of {digits} decimal{'s' * (digits > 1)}"
    return name, _in_digits(digits), lambda x: np.full_like(x, 10.0**-digits)


_GRIDS: tuple[tuple[str, Callable[[Floats], Bools], Callable[[Floats], Floats]], ...] = (
    *(_decimals(digits) for digits in (1, 2)),
    ("numbers of bf16", _in_bf16, lambda x: x * 2.0**-7),
    ("numbers of fp16", _in_fp16, lambda x: x * 2.0**-10),
    *(_decimals(digits) for digits in (3, 4, 5)),
)
"""Formats that columns may be kept in: name, which numbers are of it, and how far apart they are there."""
