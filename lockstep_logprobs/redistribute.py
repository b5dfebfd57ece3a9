"""Moves logits from vocabulary shards to sequence shards and back, by one all-to-all.

For callers that need full rows.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from lockstep_logprobs.collectives import group_size


def all_to_all_vp2sq(vocab_parallel_logits: Tensor, tp_group: dist.ProcessGroup | None) -> Tensor:
    """Exchanges this rank's columns of all rows for all columns of its rows; no gradient.

    From [BS, V/TP] to [BS/TP, V].

    Raises:
        ValueError: The logits are not a matrix, or their rows do not divide evenly.
    """
    size = _require_even_split(vocab_parallel_logits, 0, tp_group)
    by_rank = _all_to_all(vocab_parallel_logits.unflatten(0, (size, -1)), tp_group)
    return by_rank.transpose(0, 1).flatten(1)


def all_to_all_sq2vp(seq_parallel_logits: Tensor, tp_group: dist.ProcessGroup | None) -> Tensor:
    """The inverse of `all_to_all_vp2sq`: from [BS/TP, V] to [BS, V/TP]; no gradient.

    Raises:
        ValueError: The logits are not a matrix, or their columns do not divide evenly.
    """
    size = _require_even_split(seq_parallel_logits, 1, tp_group)
    return _all_to_all(
        seq_parallel_logits.unflatten(1, (size, -1)).transpose(0, 1), tp_group
    ).flatten(0, 1)


def _require_even_split(logits: Tensor, dim: int, group: dist.ProcessGroup | None) -> int:
    size = group_size(group)
    if logits.dim() != 2 or logits.shape[dim] % size:
        raise ValueError(
            f"needs a matrix whose {('rows', 'columns')[dim]} {size} ranks can split evenly, not "
            f"{tuple(logits.shape)}"
        )
    return size


def _all_to_all(pieces: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Sends [rank, ...] to each rank and returns what each rank sent here."""
    if group is None:
        return pieces
    received = torch.empty_like(pieces, memory_format=torch.contiguous_format)
    dist.all_to_all_single(received, pieces.contiguous(), group=group)
    return received
