"""A rank's share of the vocabulary, and the blocks of rows of a pass over it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist

_BLOCK_BYTES = {"cpu": 2 * 2**20}
_BLOCK_BYTES_ELSEWHERE = 32 * 2**20
"""Bytes of a block on other devices: enough to keep them busy.

A CPU's block is small enough to stay in cache.
"""


@dataclass(frozen=True)
class Shard:
    """The contiguous token ids whose columns this rank holds.

    Attributes:
        start: First token id.
        group: Ranks that hold the vocabulary together, in any order, evenly or not; None for one
            process.
    """

    start: int = 0
    group: dist.ProcessGroup | None = None

    def __post_init__(self) -> None:
        # a name, or torch's number for a group without this rank
        if isinstance(self.group, str | int):
            raise ValueError(
                f"a shard's group must be a process group of this rank, not {self.group!r}"
            )


WHOLE = Shard()
"""The full vocabulary, in one process."""


def even_shard(columns: int, group: dist.ProcessGroup | None, rank: int | None) -> Shard:
    """This rank's shard in a group whose ranks hold the same number of columns."""
    if group is None:
        return WHOLE
    assert rank is not None, "vocab_parallel_group requires vocab_parallel_rank"
    return Shard(rank * columns, group)


def split_rows(
    rows: int, columns: int, device: torch.device, most: int | None = None
) -> Iterator[slice]:
    """Splits rows into blocks whose fp32 logits take a fixed number of bytes, for any vocabulary.

    Args:
        rows: Number of rows.
        columns: Numbers per row; 0 gives no blocks.
        device: Device of the rows.
        most: Maximum rows per block; changes memory and speed, never values.
    """
    if columns == 0:
        return
    size = max(1, _BLOCK_BYTES.get(device.type, _BLOCK_BYTES_ELSEWHERE) // (4 * columns))
    size = size if most is None else min(size, most)
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))
