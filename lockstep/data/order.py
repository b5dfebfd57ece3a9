"""Order of rows in a run: a pure function of position and seed, so a resume needs no state."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from fractions import Fraction

from torch import Tensor

from lockstep.core import keyed


@functools.lru_cache(maxsize=8)
def row_order(length: int, epoch: int, seed: int, shuffle: bool) -> Tensor | range:
    """The order of `length` rows in an epoch (counted from 0)."""
    if shuffle:
        return keyed.draw_permutation(length, seed, "order of rows", epoch)
    return range(length)


def mix_rows_at(
    position: int,
    count: int,
    sizes: Sequence[int],
    weights: Sequence[float],
    seed: int,
    shuffle: bool,
) -> list[int]:
    """Returns rows `position` … `position + count − 1` of a run, mixed by the parts' weights.

    Each part has its own epochs and orders: no row repeats before all are used, so the row at
    position p of a part is row p mod its size of epoch p div its size. Rows are numbered across all
    parts.

    Args:
        position: Number of rows that the run has already used.
        count: Number of rows to take.
        sizes: Number of rows in each part.
        weights: Weight of each part; positive.
        seed: Key of the orders.
        shuffle: Whether to reshuffle each part for each epoch.
    """
    starts = [sum(sizes[:k]) for k in range(len(sizes))]
    seeds = [seed, *(keyed.hash_key(seed, "part", k) for k in range(1, len(sizes)))]
    taken = count_drawn(position, tuple(weights))
    rows = []
    for p in range(position + 1, position + count + 1):
        before = taken
        taken = count_drawn(p, tuple(weights))
        part = next(k for k, (old, new) in enumerate(zip(before, taken, strict=True)) if new > old)
        epoch, index = divmod(before[part], sizes[part])
        rows.append(starts[part] + int(row_order(sizes[part], epoch, seeds[part], shuffle)[index]))
    return rows


def count_drawn(position: int, weights: tuple[float, ...]) -> list[int]:
    """Counts how many of the first `position` rows come from each part.

    The first part gets its share rounded down, the second its share of the rest rounded down, and
    so on. So the proportions hold after any number of rows, not only at the end of a block, and
    each position adds a row to exactly one part.
    """
    counts = []
    left = position
    for share in _shares_of_rest(weights):
        counts.append(left * share.numerator // share.denominator)
        left -= counts[-1]
    return counts


@functools.lru_cache(maxsize=8)
def _shares_of_rest(weights: tuple[float, ...]) -> list[Fraction]:
    """Each weight's share of itself and the later ones; exact, so that counts never jump."""
    exact = [Fraction(repr(weight)) for weight in weights]
    return [weight / sum(exact[k:]) for k, weight in enumerate(exact)]
