"""Micro-batches by token budget."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


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
