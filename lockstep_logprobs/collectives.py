"""Collectives over a process group, some differentiable; a group of None means one process."""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

if hasattr(dist, "all_gather_single"):
    all_gather_single = dist.all_gather_single
    reduce_scatter_single = dist.reduce_scatter_single
else:  # names before torch 2.13, which still has these but warns
    all_gather_single = dist.all_gather_into_tensor
    reduce_scatter_single = dist.reduce_scatter_tensor

GradientMode = Literal["sum", "local"]


def all_reduce(
    tensor: Tensor, group: dist.ProcessGroup | None, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM
) -> Tensor:
    """All-reduces `tensor` in place, by sum or maximum, over the ranks of `group`; returns it."""
    if group is not None:
        dist.all_reduce(tensor, op, group)
    return tensor


def sum_gradient(tensor: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Identity forward, all-reduce backward.

    For a tensor that all ranks hold alike and each uses for its own shard.
    """
    if group is None:
        return tensor
    return _SumGradient.apply(tensor, group)


class _SumGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor, None]:
        total = grad_outputs[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=ctx.group)
        return total, None


def sum_over_ranks(tensor: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """All-reduce forward, identity backward.

    For a sum that every rank uses in the same way.
    """
    if group is None:
        return tensor
    return _SumOverRanks.apply(tensor, group)


class _SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
        total = tensor.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor, None]:
        return grad_outputs[0], None


def all_gather(
    x: Tensor, group: dist.ProcessGroup | None, gradient: GradientMode = "sum"
) -> Tensor:
    """All-gathers the tensors of all ranks, [C, *x.shape], in one call; differentiable.

    Args:
        x: This rank's tensor; same shape on every rank.
        group: The ranks; None for one process.
        gradient: Gradient of `x`. "sum": the sum of all ranks' gradients for it, by one
            reduce-scatter; a loss that every rank computes alike then counts C times. "local": only
            this rank's gradient, without communication; such a loss counts once.
    """
    if group is None:
        return x[None]
    return _AllGather.apply(x, group, gradient == "sum")


def reduce_scatter(stacked: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Reduce-scatter of `stacked` [C, …]: rank r gets the sum over ranks of entry r."""
    if group is None:
        return stacked[0]
    own = stacked.new_empty(stacked.shape[1:])
    reduce_scatter_single(own.view(-1), stacked.contiguous().view(-1), group=group)
    return own


def group_size(group: dist.ProcessGroup | None) -> int:
    """The number of ranks in a group; 1 without a group."""
    if group is None:
        return 1
    return dist.get_world_size(group)


def group_rank(group: dist.ProcessGroup | None) -> int:
    """This process's rank in a group; 0 without a group."""
    if group is None:
        return 0
    return dist.get_rank(group)


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup, summed: bool) -> Tensor:
        ctx.group = group
        ctx.summed = summed
        stacked = x.new_empty(group_size(group), *x.shape)
        all_gather_single(stacked.view(-1), x.contiguous().view(-1), group)
        return stacked

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        (grad,) = grad_outputs
        if not ctx.summed:
            return grad[dist.get_rank(ctx.group)], None, None
        return reduce_scatter(grad, ctx.group), None, None
