"""A rank's share of the vocabulary, and the blocks of rows that a pass over it goes through."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist

_BLOCK_BYTES = {"cpu": 2 * 2**20}
_BLOCK_BYTES_ELSEWHERE = 32 * 2**20
"""Bytes of a block on other devices: enough to fill them.

A CPU's block is small enough to stay in cache.
"""


@dataclass(frozen=True)
class Shard:
    """The token ids whose columns this rank holds: `start` and those that follow it.

    Attributes:
        start: The first of them.
        group: The ranks that hold the whole vocabulary together, in any order, evenly or not; None
            for one process.
    """

    start: int = 0
    group: dist.ProcessGroup | None = None

    def __post_init__(self) -> None:
        # a name, or torch's number for a group that this rank is not in
        if isinstance(self.group, str | int):
            raise ValueError(
                f"a shard's group is a process group that this rank belongs to, not {self.group!r}"
            )


WHOLE = Shard()
"""The whole vocabulary, in one process."""


def even_shard(columns: int, group: dist.ProcessGroup | None, rank: int | None) -> Shard:
    """The shard of this rank of a group whose ranks hold equally many columns."""
    if group is None:
        return WHOLE
    assert rank is not None, "vocab_parallel_rank is needed beside vocab_parallel_group"
    return Shard(rank * columns, group)


def blocks(
    rows: int, columns: int, device: torch.device, most: int | None = None
) -> Iterator[slice]:
    """Cuts rows into pieces whose fp32 logits take a fixed number of bytes, for any vocabulary.

    Args:
        rows: Number of rows.
        columns: Numbers in each; where there are none, there are no blocks.
        device: Device of the rows.
        most: A bound on the rows of a piece; it changes memory and speed, never values.
    """
    if columns == 0:
        return
    size = max(1, _BLOCK_BYTES.get(device.type, _BLOCK_BYTES_ELSEWHERE) // (4 * columns))
    size = size if most is None else min(size, most)
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))
