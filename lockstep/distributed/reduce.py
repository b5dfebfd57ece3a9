"""Sums over ranks, also as steps of autograd; every function takes its process group, and None means one process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_BUCKET_ELEMENTS = 16 * 2**20


def all_reduce_sum(tensors: Sequence[Tensor], group: dist.ProcessGroup | None) -> None:
    """Replaces each tensor by its sum over the ranks of `group`, in place, in few large messages."""
    if group is None:
        return
    bucket: list[Tensor] = []
    size = 0
    for tensor in tensors:
        if bucket and size + tensor.numel() > _BUCKET_ELEMENTS:
            _reduce_bucket(bucket, group)
            bucket, size = [], 0
        bucket.append(tensor)
        size += tensor.numel()
    if bucket:
        _reduce_bucket(bucket, group)


def _reduce_bucket(bucket: list[Tensor], group: dist.ProcessGroup) -> None:
    flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
    dist.all_reduce(flat, group=group)
    for tensor, piece in zip(bucket, flat.split([tensor.numel() for tensor in bucket]), strict=True):
        tensor.copy_(piece.view_as(tensor))


def replicated(tensor: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """A tensor that all ranks hold alike and use each for its own part: backward sums its gradient over the ranks."""
    return tensor if group is None else _Replicated.apply(tensor, group)


class _Replicated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor, None]:
        total = grad_outputs[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=ctx.group)
        return total, None


def gathered(shard: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """The ranks' shards one behind the other along the first dimension, as in sequence parallelism.

    Each rank uses the whole for its own part, so backward sums the gradient over the ranks, and each keeps its shard's.
    """
    return shard if group is None else _Gathered.apply(shard, group)


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, shard: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        whole = shard.new_empty(shard.shape[0] * group.size(), *shard.shape[1:])
        dist.all_gather_into_tensor(whole, shard.contiguous(), group)
        return whole

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor, None]:
        whole = grad_outputs[0].contiguous()
        shard = whole.new_empty(whole.shape[0] // ctx.group.size(), *whole.shape[1:])
        dist.reduce_scatter_tensor(shard, whole, group=ctx.group)
        return shard, None
