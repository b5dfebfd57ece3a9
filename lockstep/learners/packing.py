"""Micro-batches by token budget, and their division among data-parallel ranks."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

import numpy as np

_ATTENTION = 1 / 4096
"""Cost of a pair of tokens in attention, relative to a token's other cost.

About right for 1,000 hidden units.
"""


def pack_bins(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """First-fit decreasing bin packing: longest first, each into the first bin with room.

    Args:
        lengths: Tokens per sequence.
        budget: Tokens per bin; a longer sequence gets its own bin.

    Returns:
        Bins of indices into `lengths`; every index occurs once.
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
    """Splits `count` sequences, in order, into passes of `rows` each; the last may have fewer."""
    return [list(range(start, min(start + rows, count))) for start in range(0, count, rows)]


def deal_to_ranks(lengths: Sequence[int], budget: int, ranks: int) -> list[list[list[int]]]:
    """Packs sequences for ranks that make the same number of passes in lockstep.

    Each pass waits for the slowest rank. So bins of similar cost are computed in the same pass, and
    ranks take turns at the most expensive one. If the number of bins is not a multiple of the
    ranks, the most expensive bins are halved.

    Returns:
        For each rank its passes, as indices into `lengths`; a pass may be empty if a rank only
    joins the other ranks' collectives.
    """
    priced = [
        (estimate_cost([lengths[index] for index in bin]), bin)
        for bin in pack_bins(lengths, budget)
    ]
    while len(priced) % ranks:
        dearest = max((one for one in priced if len(one[1]) > 1), key=itemgetter(0), default=None)
        if dearest is None:
            priced.append((0.0, []))
            continue
        priced.remove(dearest)
        halves = dearest[1][0::2], dearest[1][1::2]
        priced += [(estimate_cost([lengths[index] for index in half]), half) for half in halves]
    bins = [bin for _, bin in sorted(priced, key=itemgetter(0), reverse=True)]
    rounds = [bins[start : start + ranks] for start in range(0, len(bins), ranks)]
    return [
        [one[(rank + turn) % ranks] for turn, one in enumerate(rounds)] for rank in range(ranks)
    ]


def estimate_cost(lengths: Sequence[int]) -> float:
    """Cost of a pass over sequences, in tokens; attention grows with the square of each length."""
    return sum(length + _ATTENTION * length * length for length in lengths)
