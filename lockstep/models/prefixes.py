"""Prefixes that sequences share: what a token computes depends only on the tokens up to it.

So each distinct path of tokens is computed once. A map from each token of the batch to the computed
token gathers the outputs back; columns, masks, losses and metrics keep every sequence.

Letters: B sequences of N tokens, n computed tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from lockstep.core.batch import Batch


@dataclass(frozen=True)
class PathTree:
    """The distinct paths of a batch's tokens.

    Attributes:
        branches: Sequences that are not a prefix of the next one, in the order in which their
            tokens are computed.
        shared: Number of each branch's first tokens that earlier branches compute.
        computed_index: Computed token of each token of the batch, int64 [N].
        source_index: A token of the batch for each computed token, int64 [n].
    """

    branches: tuple[int, ...]
    shared: tuple[int, ...]
    computed_index: Tensor
    source_index: Tensor

    @classmethod
    def from_batch(cls, batch: Batch) -> Self:
        """Finds equal prefixes by token id; nothing moves if there are none."""
        rows = [row.numpy() for row in batch.sequences()]
        order = sort_paths(rows)
        common = count_common(rows, order)
        if not any(common):
            return cls.from_separate(batch)
        starts = batch.starts.tolist()
        computed = np.empty(batch.tokens.numel(), dtype=np.int64)
        source = list[int]()
        branches = list[int]()
        shared = list[int]()
        previous = np.empty(0, dtype=np.int64)
        for row, known in zip(order, common, strict=True):
            own = np.arange(len(source), len(source) + len(rows[row]) - known)
            source += range(starts[row] + known, starts[row] + len(rows[row]))
            if branches and known == len(previous):  # the row extends the one before it
                branches[-1] = row
            else:
                branches.append(row)
                shared.append(known)
            previous = np.concatenate([previous[:known], own])
            computed[starts[row] : starts[row] + len(previous)] = previous
        return cls(tuple(branches), tuple(shared), torch.from_numpy(computed), torch.tensor(source))

    @classmethod
    def from_separate(cls, batch: Batch) -> Self:
        """The tree in which each sequence is computed separately."""
        tokens = torch.arange(batch.tokens.numel())
        return cls(tuple(range(len(batch))), (0,) * len(batch), tokens, tokens)

    def add_sequence(self, row: int, length: int) -> Self:
        """The tree with one more sequence, `row` of the batch, which shares nothing."""
        tokens = torch.arange(length)
        return type(self)(
            (*self.branches, row),
            (*self.shared, 0),
            torch.cat([self.computed_index, tokens + self.source_index.numel()]),
            torch.cat([self.source_index, tokens + self.computed_index.numel()]),
        )


def sort_paths(rows: Sequence[np.ndarray]) -> list[int]:
    """The lexicographic order of sequences of token ids, in which a prefix comes first."""
    keys = [row.astype(">u4").tobytes() for row in rows]
    return sorted(range(len(rows)), key=keys.__getitem__)


def count_common(rows: Sequence[np.ndarray], order: Sequence[int]) -> list[int]:
    """The number of first tokens that each sequence has in common with the one before it."""
    common = [0] * min(1, len(order))
    for i in range(1, len(order)):
        before = rows[order[i - 1]]
        row = rows[order[i]]
        size = min(len(before), len(row))
        differ = np.flatnonzero(before[:size] != row[:size])
        common.append(int(differ[0]) if len(differ) else size)
    return common
