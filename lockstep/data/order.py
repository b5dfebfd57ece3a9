"""Order of rows in a run: a pure function of position and seed, so a resume needs no state."""

from __future__ import annotations

import functools

from torch import Tensor

from lockstep.core import keyed


@functools.lru_cache(maxsize=8)
def order(length: int, epoch: int, seed: int, shuffle: bool) -> Tensor | range:
    """The order of `length` rows in an epoch (counted from 0)."""
    return keyed.permutation(length, seed, "order of rows", epoch) if shuffle else range(length)


def rows_at(position: int, count: int, length: int, seed: int, shuffle: bool) -> list[int]:
    """Returns the rows at `position` … `position + count − 1` of a run: row p mod `length` of epoch p div `length`.

    Args:
        position: Number of rows that the run has taken before.
        count: Number of rows to take.
        length: Number of rows of the data.
        seed: Key of the orders.
        shuffle: Whether each epoch is shuffled anew.
    """
    places = (divmod(taken, length) for taken in range(position, position + count))
    return [int(order(length, epoch, seed, shuffle)[place]) for epoch, place in places]
