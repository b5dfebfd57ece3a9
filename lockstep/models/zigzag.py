"""Attention under context parallelism: each rank has two chunks of every sequence, and gathers the keys of all ranks.

Keys and values are gathered, which with grouped-query attention are smaller than the hidden states. A rank computes
attention for its own queries only; its early chunk sees few keys and its late one many, so all ranks have equal work.

Letters: C ranks, T tokens of the row, n = T / C of them on this rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
import torch.distributed as dist
from torch import Tensor

from lockstep.batch import Batch
from lockstep.models.attention import Layout, width_of
from lockstep.models.kernels import Kernel, attend
from lockstep_logprobs.collectives import all_gather
from lockstep_logprobs.packed import Packing


@dataclass(frozen=True)
class Grid:
    """Chunks that see a similar number of keys: a row of queries and a row of keys for each.

    Attributes:
        query: Indices of this rank's tokens, int64 [rows, q]; arbitrary where a chunk is shorter.
        key: Indices into the concatenated shares of all ranks, int64 [rows, k]; arbitrary where there are fewer.
        back: Distance of each key back from each query, int64 [rows, q, k]; negative for keys after it.
    """

    query: Tensor
    key: Tensor
    back: Tensor

    def mask(self, window: int | None) -> Tensor:
        """Mask of the keys that each query sees, bool [rows, 1, q, k]."""
        seen = self.back >= 0 if window is None else (self.back >= 0) & (self.back < window)
        return seen[:, None]

    def map(self, change: Callable[[Tensor], Tensor]) -> Grid:
        """The same grid, with each tensor changed."""
        return Grid(change(self.query), change(self.key), change(self.back))


@dataclass(frozen=True)
class Zigzag(Layout):
    """The layout of one rank's share of a row.

    Attributes:
        group: The ranks.
        grids: Grids that together hold each of this rank's tokens.
        from_cells: Index of each token in the concatenated queries of all grids, int64 [n].
    """

    group: dist.ProcessGroup | None
    grids: tuple[Grid, ...]
    from_cells: Tensor

    @classmethod
    def of(cls, row: Batch, packing: Packing, rank: int, group: dist.ProcessGroup | None) -> Zigzag:
        """The layout of sequences whose lengths can be cut into 2 · C chunks, on one of the ranks of a group."""
        size = packing.size
        chunk_S = (row.lengths // (2 * size)).repeat(2)
        first_S = torch.cat([torch.full_like(row.lengths, rank), torch.full_like(row.lengths, 2 * size - 1 - rank)])
        start_S = row.starts.repeat(2)
        local_S = torch.cat([row.starts // size, row.starts // size + row.lengths // (2 * size)])
        extent_S, order_S = torch.sort((first_S + 1) * chunk_S, descending=True, stable=True)
        widths = list(accumulate(extent_S.tolist(), width_of))
        chunks = torch.stack([chunk_S, first_S * chunk_S, start_S, local_S], 1)[order_S]
        pieces = chunks.split(list(Counter(widths).values()))
        device, gathered_T = packing.cu_seqlens.device, packing.gather_index()
        built = [_grid(piece, width) for piece, width in zip(pieces, Counter(widths), strict=True)]
        grids = [Grid(query.to(device), gathered_T[key.to(device)], back.to(device)) for query, key, back, _ in built]
        return cls(group, tuple(grids), _cells(built, packing.tokens // size).to(device))

    def map(self, change: Callable[[Tensor], Tensor]) -> Zigzag:
        """The same layout, with each tensor changed."""
        grids = tuple(grid.map(change) for grid in self.grids)
        return replace(self, grids=grids, from_cells=change(self.from_cells))

    takes_kernels = False

    def attend(
        self,
        kernel: Kernel,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scaling: float,
        window: int | None,
    ) -> Tensor:
        all_TKHD = all_gather(torch.stack([key[0], value[0]]).permute(2, 0, 1, 3).contiguous(), self.group).flatten(
            0, 1
        )
        query_nHD = query[0].transpose(0, 1)
        out = torch.cat([_attend_grid(grid, query_nHD, all_TKHD, scaling, window) for grid in self.grids])
        return out.index_select(0, self.from_cells)[None]


def _grid(chunk_S4: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, keys by position, distances, and which queries are real."""
    length, first, start, local = chunk_S4.T[..., None]
    i, j = torch.arange(int(length.max()))[None], torch.arange(width)[None]
    inside = torch.minimum(i, length - 1)
    key = torch.minimum(j, first + length - 1)
    back = (first + inside)[..., None] - j[:, None]
    return local + inside, start + key, back, i < length


def _cells(grids: Sequence[tuple[Tensor, Tensor, Tensor, Tensor]], tokens: int) -> Tensor:
    query = torch.cat([query.reshape(-1) for query, *_ in grids])
    real = torch.cat([real.reshape(-1) for *_, real in grids]).nonzero().squeeze(-1)
    return torch.empty(tokens, dtype=torch.int64).index_copy_(0, query[real], real)


def _attend_grid(grid: Grid, query_nHD: Tensor, all_TKHD: Tensor, scaling: float, window: int | None) -> Tensor:
    """Attention of one grid's queries [rows · q, heads, size]."""
    rows, width = grid.query.shape
    q = query_nHD.index_select(0, grid.query.view(-1)).unflatten(0, (rows, width)).transpose(1, 2)
    kv = all_TKHD.index_select(0, grid.key.view(-1)).unflatten(0, (rows, -1))
    k, v = kv.permute(2, 0, 3, 1, 4)
    return attend(q, k, v, grid.mask(window), scaling).transpose(1, 2).flatten(0, 1)
