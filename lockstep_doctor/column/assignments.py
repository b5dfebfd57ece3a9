"""Values that belong to other tokens: rows permuted, positions shifted, a neighbour's numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lockstep_doctor.column.predicates import Bools, Floats

Ints = NDArray[np.int64]

_FAR_ROWS, _FAR_PLACES = 8, 8
_LEFT = 0.1
"""Share of the difference that may be left where values are another token's."""

_PLACES, _MOST_ROWS, _MOST_TOKENS = 64, 512, 2000


@dataclass(frozen=True)
class Assignment:
    """A shift after which the values of tokens are found on the other side.

    Attributes:
        rows: How many rows on; 0: in the same one.
        places: How many tokens on, in the row.
        left: Share of the mean difference, each counting at most 1 nat, that is left so.
    """

    rows: int
    places: int
    left: float

    def __str__(self) -> str:
        parts = [f"{self.rows:+d} row{'s' * (abs(self.rows) > 1)}"] * (self.rows != 0)
        parts += [f"{self.places:+d} position{'s' * (abs(self.places) > 1)}"] * (self.places != 0)
        return " and ".join(parts)


@dataclass(frozen=True)
class RowTokens:
    """Both sides by row and place in the row.

    Attributes:
        own: Values of the side that is asked about, [M].
        other: Of the other one, [M].
        row: Of each token, [M].
        starts: Where each row begins among the tokens, [B].
        lengths: Of each row, [B].
    """

    own: Floats
    other: Floats
    row: Ints
    starts: Ints
    lengths: Ints

    @property
    def place(self) -> Ints:
        """Place of each token in its row."""
        return np.arange(self.own.size) - self.starts[self.row]


def find_assignment(tokens: RowTokens, hit: Bools) -> Assignment | None:
    """Finds the one shift of rows and positions that takes the difference of the hit tokens away."""
    where = np.flatnonzero(hit)
    if where.size < 8:
        return None
    where = where[:: 1 + where.size // _MOST_TOKENS]
    found = [one for one in _shifts(tokens, where) if one.left < _LEFT]
    return min(found, key=lambda one: one.left + 0.001 * (abs(one.rows) + abs(one.places)), default=None)


def _shifts(tokens: RowTokens, where: Ints) -> Iterator[Assignment]:
    row, place, own = tokens.row[where], tokens.place[where], tokens.own[where]
    before = _mean_off(own, tokens.other[where])
    if before <= 0:
        return
    for rows in range(-_FAR_ROWS, _FAR_ROWS + 1):
        source = row + rows
        for places in range(-_FAR_PLACES, _FAR_PLACES + 1):
            there = (source >= 0) & (source < tokens.lengths.size) & (place + places >= 0)
            there[there] &= place[there] + places < tokens.lengths[source[there]]
            if (rows or places) and there.mean() > 0.5:
                theirs = tokens.other[tokens.starts[source[there]] + place[there] + places]
                yield Assignment(rows, places, _mean_off(own[there], theirs) / before)


def find_row_order(tokens: RowTokens) -> dict[int, int]:
    """Finds the rows whose values are those of another row on the other side: row → the row that has them.

    Rows are compared by the first tokens that both have, so rows of other lengths may be found as well.
    """
    rows = tokens.lengths.size
    if not 2 <= rows <= _MOST_ROWS:
        return {}
    own, other = (_grid(tokens, side) for side in (tokens.own, tokens.other))
    found: dict[int, int] = {}
    for row in range(rows):
        off = np.minimum(np.abs(own[row] - other), 1.0)
        both = ~np.isnan(off)
        count = both.sum(1)
        mean = np.where(count >= 4, np.where(both, off, 0.0).sum(1) / np.maximum(count, 1), np.inf)
        best = int(np.argmin(mean))
        if best != row and mean[best] < _LEFT * mean[row] and np.sum(mean < 2 * mean[best] + 1e-9) == 1:
            found[row] = best
    return found


def _grid(tokens: RowTokens, side: Floats) -> Floats:
    grid = np.full((tokens.lengths.size, _PLACES), np.nan)
    place = tokens.place
    inside = place < _PLACES
    grid[tokens.row[inside], place[inside]] = np.where(np.isfinite(side), side, -1e6)[inside]
    return grid


def _mean_off(a: Floats, b: Floats) -> float:
    with np.errstate(invalid="ignore"):
        off = np.where(a == b, 0.0, np.abs(a - b))
    return float(np.minimum(np.nan_to_num(off, nan=1.0, posinf=1.0), 1.0).mean())
