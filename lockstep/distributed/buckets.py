"""All-reduces of many tensors, in few large messages."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

_BUCKET_ELEMENTS = 16 * 2**20


def all_reduce_sum(tensors: Sequence[Tensor], group: dist.ProcessGroup | None) -> None:
    """Sums each tensor over the ranks of `group`, in place, in few large messages."""
    if group is None:
        return
    bucket: list[Tensor] = []
    size = 0
    for tensor in tensors:
        if bucket and size + tensor.numel() > _BUCKET_ELEMENTS:
            _reduce_bucket(bucket, group)
            bucket = []
            size = 0
        bucket.append(tensor)
        size += tensor.numel()
    if bucket:
        _reduce_bucket(bucket, group)


def _reduce_bucket(bucket: list[Tensor], group: dist.ProcessGroup) -> None:
    flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
    dist.all_reduce(flat, group=group)
    for tensor, piece in zip(
        bucket, flat.split([tensor.numel() for tensor in bucket]), strict=True
    ):
        tensor.copy_(piece.view_as(tensor))
