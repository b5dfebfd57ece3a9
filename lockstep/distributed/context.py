"""Context parallelism: every rank holds a share of each sequence's positions, cut zig-zag.

A sequence is cut into 2·C chunks and rank r of C holds chunks r and 2C−1−r, so that under a causal mask every rank has
the same work to do.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from lockstep.distributed.reduce import Gradient, ranks, stack


def zigzag(length: int, size: int, device: torch.device | None = None) -> Tensor:
    """Which positions each rank holds.

    Args:
        length: Of the sequence.
        size: The number of ranks; one holds everything, in order.
        device: Where the answer is to lie.

    Returns:
        int64 [size, length / size], in row r the positions of rank r.

    Raises:
        ValueError: The length is no multiple of 2 · size.
    """
    position = torch.arange(length, device=device)
    if size == 1:
        return position[None]
    if length % (2 * size):
        raise ValueError(
            f"a sequence of {length} positions cannot be cut into {2 * size} equal chunks for {size} context-parallel "
            f"ranks; pad it to a multiple of {2 * size}"
        )
    early, late = position.view(2, size, length // (2 * size))
    return torch.cat([early, late.flip(0)], 1)


def take(x: Tensor, group: dist.ProcessGroup | None, dim: int = 1) -> Tensor:
    """This rank's share of `x` along `dim`; all of it without a group."""
    size = ranks(group)
    if size == 1:
        return x
    return x.index_select(dim, zigzag(x.shape[dim], size, x.device)[dist.get_rank(group)])


def gather(x: Tensor, group: dist.ProcessGroup | None, dim: int = 1, gradient: Gradient = "sum") -> Tensor:
    """The inverse of `take`: the shares of all ranks in the order of positions; `x` itself without a group.

    Args:
        x: This rank's share; it has the same shape on every rank.
        group: The ranks that hold the sequence together.
        dim: The dimension that is cut.
        gradient: See `reduce.stack`.
    """
    if ranks(group) == 1:
        return x
    if x.shape[dim] % 2:
        raise ValueError(f"a rank's share is two chunks of equal length, but this one has {x.shape[dim]} positions")
    early, late = stack(x, group, gradient).chunk(2, dim % x.dim() + 1)
    return torch.cat([*early, *reversed(late.unbind())], dim)
