"""Micro-batches by token budget, and their division among ranks that work side by side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_ATTENTION = 1 / 4096
"""Cost of a pair of tokens in attention, in that of a token elsewhere: about that of a layer of some 1,000 units."""


def pack(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """First-fit decreasing: sequences, longest first, each into the first bin that has room.

    Args:
        lengths: Tokens per sequence.
        budget: Tokens per bin; a longer sequence gets a bin of its own.

    Returns:
        Bins of indices into `lengths`, every index once.
    """
    order = np.argsort(-np.asarray(lengths), kind="stable")
    room = np.zeros(0, dtype=np.int64)
    bins: list[list[int]] = []
    for index in order.tolist():
        length = lengths[index]
        fits = np.flatnonzero(room >= length)
        if fits.size:
            chosen = int(fits[0])
            bins[chosen].append(index)
            room[chosen] -= length
        else:
            bins.append([index])
            room = np.append(room, max(budget - length, 0))
    return bins


def deal(lengths: Sequence[int], budget: int, ranks: int) -> list[list[list[int]]]:
    """Packs sequences for ranks that all make the same number of passes, each waiting for the slowest.

    Bins of like cost come in the same pass; in turn each rank gets the dearest. Where bins do not divide among the
    ranks, the dearest are halved.

    Returns:
        For each rank its passes, of indices into `lengths`; a pass without any is made to keep the others company.
    """
    bins = pack(lengths, budget)
    while len(bins) % ranks:
        bins.sort(key=lambda bin: -cost([lengths[index] for index in bin]))
        whole = next((bin for bin in bins if len(bin) > 1), None)
        if whole is None:
            bins.append([])
        else:
            bins.remove(whole)
            bins += [whole[0::2], whole[1::2]]
    bins.sort(key=lambda bin: -cost([lengths[index] for index in bin]))
    rounds = [bins[start : start + ranks] for start in range(0, len(bins), ranks)]
    return [[one[(rank + turn) % ranks] for turn, one in enumerate(rounds)] for rank in range(ranks)]


def cost(lengths: Sequence[int]) -> float:
    """What a pass over sequences takes, in tokens: attention grows with the square of each."""
    return sum(length + _ATTENTION * length * length for length in lengths)
