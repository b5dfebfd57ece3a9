"""Micro-batches by token budget, and their division among ranks that work side by side."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

import numpy as np

_ATTENTION = 1 / 4096
"""Cost of a pair of tokens in attention, relative to a token's cost elsewhere; about right for
1,000 hidden units.
"""


def pack(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """First-fit decreasing: sequences, longest first, each into the first bin that has room.

    Args:
        lengths: Tokens per sequence.
        budget: Tokens per bin; a longer sequence gets a bin to itself.

    Returns:
        Bins of indices into `lengths`, every index once.
    """
    order = np.argsort(-np.asarray(lengths), kind="stable").tolist()
    room = np.zeros(len(lengths), dtype=np.int64)
    bins: list[list[int]] = []
    for index in order:
        length = lengths[index]
        chosen = int((room[: len(bins)] >= length).argmax()) if bins else 0
        if bins and room[chosen] >= length:
            bins[chosen].append(index)
            room[chosen] -= length
        else:
            room[len(bins)] = max(budget - length, 0)
            bins.append([index])
    return bins


def cut_in_order(count: int, rows: int) -> list[list[int]]:
    """Cuts `count` sequences into passes of `rows` each, in order; the last may have fewer."""
    return [list(range(start, min(start + rows, count))) for start in range(0, count, rows)]


def deal(lengths: Sequence[int], budget: int, ranks: int) -> list[list[list[int]]]:
    """Packs sequences for ranks that all make the same number of passes, each waiting for the
    slowest.

    Bins of similar cost are computed in the same pass, and ranks take turns at the most expensive
    one. Where the number of bins is no multiple of the ranks, the most expensive bins are halved.

    Returns:
        For each rank its passes, as indices into `lengths`; a pass may be empty, for a rank to join
        the others' pass.
    """
    priced = [(cost([lengths[index] for index in bin]), bin) for bin in pack(lengths, budget)]
    while len(priced) % ranks:
        dearest = max((one for one in priced if len(one[1]) > 1), key=itemgetter(0), default=None)
        if dearest is None:
            priced.append((0.0, []))
            continue
        priced.remove(dearest)
        halves = dearest[1][0::2], dearest[1][1::2]
        priced += [(cost([lengths[index] for index in half]), half) for half in halves]
    bins = [bin for _, bin in sorted(priced, key=itemgetter(0), reverse=True)]
    rounds = [bins[start : start + ranks] for start in range(0, len(bins), ranks)]
    return [
        [one[(rank + turn) % ranks] for turn, one in enumerate(rounds)] for rank in range(ranks)
    ]


def cost(lengths: Sequence[int]) -> float:
    """Cost of a pass over sequences, in tokens: attention grows with the square of each."""
    return sum(length + _ATTENTION * length * length for length in lengths)
