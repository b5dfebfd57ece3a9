"""Context-parallel attention: each rank has two chunks of every sequence, and gathers all keys.

Keys and values are gathered, which with grouped-query attention are smaller than the hidden states.
A rank computes attention for its own queries only; its early chunk sees few keys and its late one
many, so all ranks have equal work.

Letters: T tokens of the row, n of them on this rank, H heads of keys, D size of a head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import Tensor

from lockstep.core.batch import Batch
from lockstep.models.attention import AttentionLayout
from lockstep.models.kernels import AttentionKernel
from lockstep_logprobs.collectives import all_gather
from lockstep_logprobs.packed import Packing


@dataclass(frozen=True)
class SequenceChunk:
    """A chunk of a sequence; its tokens see the chunk and all tokens before it.

    Attributes:
        size: Number of tokens.
        start: Position of the sequence's first token in the row.
        seen: Number of the sequence's tokens up to the chunk's last.
    """

    size: int
    start: int
    seen: int


@dataclass(frozen=True)
class ZigzagLayout(AttentionLayout):
    """The layout of one rank's share of a row.

    Attributes:
        group: The ranks.
        chunks: The chunks of the share, in order.
        gathered: Index of each position of the row into the concatenated shares of all ranks, int64
            [T].
    """

    group: dist.ProcessGroup | None
    chunks: tuple[SequenceChunk, ...]
    gathered: Tensor

    @classmethod
    def from_row(
        cls, row: Batch, packing: Packing, rank: int, group: dist.ProcessGroup | None
    ) -> ZigzagLayout:
        """One of C ranks' layout, for sequences whose lengths can be cut into 2 · C chunks."""
        count = 2 * packing.size
        chunks = list[SequenceChunk]()
        for start, length in zip(row.starts.tolist(), row.lengths.tolist(), strict=True):
            for number in (rank, count - 1 - rank):
                seen = (number + 1) * length // count
                chunks.append(SequenceChunk(length // count, start, seen))
        return cls(group, tuple(chunks), packing.gather_index())

    def map_tensors(self, change: Callable[[Tensor], Tensor]) -> ZigzagLayout:
        """The same layout with each tensor mapped."""
        return replace(self, gathered=change(self.gathered))

    def attend(
        self,
        kernel: AttentionKernel,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scaling: float,
        window: int | None,
    ) -> Tensor:
        own_n2HD = torch.stack([key[0], value[0]]).permute(2, 0, 1, 3).contiguous()
        all_T2HD = all_gather(own_n2HD, self.group).flatten(0, 1).index_select(0, self.gathered)
        key, value = all_T2HD.permute(1, 2, 0, 3)[:, None]
        queries = query.split([chunk.size for chunk in self.chunks], dim=2)
        out = list[Tensor]()
        for chunk, q in zip(self.chunks, queries, strict=True):
            seen = slice(chunk.start, chunk.start + chunk.seen)
            k = key[:, :, seen]
            v = value[:, :, seen]
            out.append(kernel.attend_causally(q, k, v, scaling, window))
        return torch.cat(out)[None]
