"""Sequences over context-parallel ranks, and sums over ranks; names are those of `model_utils`."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from lockstep_logprobs import context
from lockstep_logprobs.autograd import AllGatherCPTensor
from lockstep_logprobs.collectives import all_gather, group_rank, group_size, sum_over_ranks


def _get_tokens_on_this_cp_rank(
    input_ids: Tensor, cp_rank: int, cp_size: int, seq_dim: int = 1
) -> Tensor:
    """Selects rank `cp_rank`'s part of a sequence: chunks r and 2·CP−1−r of 2·CP.

    Raises:
        ValueError: The length is not a multiple of 2·CP.
    """
    positions = context.zigzag_positions(input_ids.shape[seq_dim], cp_size, input_ids.device)[
        cp_rank
    ]
    if cp_size == 1:
        return input_ids
    return input_ids.index_select(seq_dim, positions)


def allgather_cp_sharded_tensor(
    tensor: Tensor, cp_group: dist.ProcessGroup | None, seq_dim: int = 1
) -> Tensor:
    """Gathers the full sequence from zig-zag shares; see `AllGatherCPTensor` for its gradient."""
    return AllGatherCPTensor.apply(tensor, cp_group, seq_dim)


def cp_load_balanced_to_contiguous(
    x: Tensor, *, cp_group: dist.ProcessGroup | None = None, seq_dim: int = 1
) -> Tensor:
    """Redistributes a sequence from zig-zag shares to contiguous shares; differentiable.

    Args:
        x: The share, or a DTensor of it.
        cp_group: Ranks that hold the sequence; None or one rank: returns `x` itself.
        seq_dim: Dimension that is cut.
    """
    if group_size(cp_group) == 1:
        return x
    own = x.to_local() if isinstance(x, DTensor) else x
    whole = allgather_cp_sharded_tensor(own, cp_group, seq_dim)
    return whole.chunk(group_size(cp_group), seq_dim)[group_rank(cp_group)].contiguous()


def cp_shift_next(x: Tensor, cp_group: dist.ProcessGroup | None = None, *, fill: float) -> Tensor:
    """Shifts by one position to the next value, over contiguous pieces on ranks; differentiable.

    Args:
        x: This rank's piece [B, S/CP, ...].
        cp_group: Ranks that hold the sequence, in the order of their pieces.
        fill: Value after the very last position.
    """
    size = group_size(cp_group)
    own = group_rank(cp_group)
    # The last rank also gathers, and overwrites the result: otherwise it would miss backward's
    # collective.
    after = all_gather(x[:, :1], cp_group)[(own + 1) % size]
    if own == size - 1:
        after = after.masked_fill(torch.ones_like(after, dtype=torch.bool), fill)
    return torch.cat([x[:, 1:], after], 1)


def group_all_reduce_sum_with_grad(x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Sum over the ranks of a group; `x` itself without one.

    Backward passes the gradient on unchanged.
    """
    return sum_over_ranks(x, None if group_size(group) == 1 else group)


def group_all_reduce_sum(x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """`group_all_reduce_sum_with_grad` for counts and other denominators, without gradient."""
    return group_all_reduce_sum_with_grad(x.detach(), group)
