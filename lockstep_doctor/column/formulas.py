"""Formulas that turn one side's values into the other's: another unit, an offset, a factor, another token's values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from lockstep_doctor.column.predicates import Bools, Floats, Ints
from lockstep_doctor.statistics import Compared

EXACT = 0.14
"""Share of the difference that may be left where a formula is the whole of it."""

OTHERS = "the other side's"

_FAR = range(-8, 9)
_LEAST_TOKENS, _MOST_TOKENS = 8, 2000
_MOST_ROWS, _PLACES = 512, 64

_UNITS: tuple[tuple[str, Callable[[Floats], Floats]], ...] = (
    (f"{OTHERS} with the sign turned", np.negative),
    (f"{OTHERS} probabilities, not their logarithms", lambda x: np.exp(np.minimum(x, 50.0))),
    (f"{OTHERS} as logarithms to the base 2", lambda x: x / math.log(2)),
    (f"{OTHERS} as logarithms to the base 10", lambda x: x / math.log(10)),
)


@dataclass(frozen=True)
class Formula:
    """A formula for one side's values, given the other's.

    Attributes:
        left: Share of the mean difference, each counting at most 1 nat, that it does not explain.
        price: That it must explain more than a simpler one.
    """

    kind: str
    what: str
    left: float
    price: float = 0.0

    @property
    def rank(self) -> float:
        """The least is best."""
        return self.left + self.price


def find_formula(sides: Compared, tokens: Bools) -> Formula | None:
    """Finds the formula for the inference side's values of some tokens that leaves least of the difference.

    Of those that leave alike it is the simplest.
    """
    where = np.flatnonzero(tokens)
    own, other = sides.infer.numpy()[where], sides.train.numpy()[where]
    before = _mean_off(own, other)
    if where.size < _LEAST_TOKENS or before <= 0 or not np.isfinite(own).all() or not np.isfinite(other).all():
        return None
    offset, factor = float(np.median(own - other)), fit_factor(own, other)
    units = [Formula("formula", what, _mean_off(own, change(other)) / before) for what, change in _UNITS]
    added = Formula("offset", f"{OTHERS} {offset:+.4g} nats", _mean_off(own, other + offset) / before, 0.01)
    scaled = Formula("scaled", f"{factor:.4g} times {OTHERS}", _mean_off(own, factor * other) / before, 0.03)
    shifts = _find_shifts(sides, where[:: 1 + where.size // _MOST_TOKENS])
    return min([*units, added, scaled, *shifts], key=lambda one: one.rank)


def fit_factor(own: Floats, other: Floats) -> float:
    """The factor between two columns that both have errors (Deming), where least squares would be attenuated."""
    xx, yy, xy = (float((a * b).sum()) for a, b in ((other, other), (own, own), (other, own)))
    if abs(xy) < 1e-300:
        return 0.0
    return (yy - xx + math.sqrt((yy - xx) ** 2 + 4 * xy * xy)) / (2 * xy)


def _find_shifts(sides: Compared, where: Ints) -> Iterator[Formula]:
    """Yields values of the token some rows and some places on, where most of the tokens have one there."""
    row, place, lengths = sides.row.numpy()[where], sides.index.numpy()[where] - 1, sides.lengths.numpy()
    starts, own, other = np.cumsum(lengths) - lengths, sides.infer.numpy()[where], sides.train.numpy()
    before = _mean_off(own, other[where])
    for rows, places in product(_FAR, _FAR):
        source, at = np.clip(row + rows, 0, lengths.size - 1), place + places
        there = (source == row + rows) & (at >= 0) & (at < lengths[source])
        if before > 0 and (rows or places) and there.mean() > 0.5:
            left = _mean_off(own[there], other[starts[source[there]] + at[there]]) / before
            how = [f"{n:+d} {name}{'s' * (abs(n) > 1)}" for n, name in ((rows, "row"), (places, "position")) if n]
            kind = "rows moved" if rows else "positions moved"
            yield Formula(kind, f"{OTHERS} {' and '.join(how)} from them", left, 0.001 * (abs(rows) + abs(places)))


def find_row_order(sides: Compared) -> dict[int, int]:
    """Finds the rows whose values are those of another row on the training side: row → the row that has them.

    Rows are compared by the first tokens that both have, so rows of other lengths may be found as well.
    """
    rows = sides.lengths.numel()
    if not 2 <= rows <= _MOST_ROWS:
        return {}
    row, place = sides.row.numpy(), sides.index.numpy() - 1
    own, other = np.full((2, rows, _PLACES), np.nan)
    for grid, side in ((own, sides.infer), (other, sides.train)):
        inside = place < _PLACES
        grid[row[inside], place[inside]] = side.nan_to_num(-1e6, -1e6, -1e6).numpy()[inside]
    found: dict[int, int] = {}
    for number in range(rows):
        off = np.minimum(np.abs(own[number] - other), 1.0)
        count = (~np.isnan(off)).sum(1)
        mean = np.where(count >= 4, np.nansum(off, 1) / np.maximum(count, 1), np.inf)
        best = int(np.argmin(mean))
        if best != number and mean[best] < 0.1 * mean[number] and np.sum(mean < 2 * mean[best] + 1e-9) == 1:
            found[number] = best
    return found


def _mean_off(a: Floats, b: Floats) -> float:
    with np.errstate(invalid="ignore"):
        off = np.where(a == b, 0.0, np.abs(a - b))
    return float(np.minimum(np.nan_to_num(off, nan=1.0, posinf=1.0), 1.0).mean()) if a.size else 0.0
