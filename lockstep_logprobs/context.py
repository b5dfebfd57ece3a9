"""Context parallelism: every rank holds a zig-zag share of each sequence's positions.

A sequence is cut into 2·C chunks and rank r of C holds chunks r and 2C−1−r, so that under a causal
mask every rank has the same work.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from lockstep_logprobs.collectives import GradientMode, all_gather, group_size


def zigzag_positions(length: int, size: int, device: torch.device | None = None) -> Tensor:
    """The positions that each rank holds.

    Args:
        length: Length of the sequence.
        size: Number of ranks; a single rank holds all positions in order.
        device: Device of the result.

    Returns:
        int64 [size, length / size]; row r has the positions of rank r.

    Raises:
        ValueError: The length is not a multiple of 2 · size.
    """
    position = torch.arange(length, device=device)
    if size == 1:
        return position[None]
    if length % (2 * size):
        raise ValueError(
            f"cannot split a sequence of {length} positions into {2 * size} equal chunks for "
            f"{size} context-parallel ranks; pad it to a multiple of {2 * size}"
        )
    early, late = position.view(2, size, length // (2 * size))
    return torch.cat([early, late.flip(0)], 1)


def take(x: Tensor, group: dist.ProcessGroup | None, dim: int = 1) -> Tensor:
    """This rank's share of `x` along `dim`; all of it without a group."""
    size = group_size(group)
    if size == 1:
        return x
    return x.index_select(dim, zigzag_positions(x.shape[dim], size, x.device)[dist.get_rank(group)])


def take_padded(whole: Tensor, positions: int, group: dist.ProcessGroup | None) -> Tensor:
    """This rank's share of token ids [B, S, ...], padded with 0 to `positions` on every rank.

    Raises:
        ValueError: More tokens than positions.
    """
    size = group_size(group)
    padding = positions * size - whole.shape[1]
    if padding < 0:
        raise ValueError(
            f"{whole.shape[1]} tokens for logits at {positions * size} positions over {size} "
            "context-parallel ranks; logits must cover every token; pass cp_group if sequences "
            "are split"
        )
    return take(F.pad(whole, (0, 0) * (whole.dim() - 2) + (0, padding)), group)


def gather(
    x: Tensor, group: dist.ProcessGroup | None, dim: int = 1, gradient: GradientMode = "sum"
) -> Tensor:
    """The inverse of `take`: all ranks' shares in position order; `x` itself without a group.

    Args:
        x: This rank's share; same shape on every rank.
        group: Ranks that hold the sequence.
        dim: Dimension that is cut.
        gradient: See `collectives.all_gather`.
    """
    if group_size(group) == 1:
        return x
    if x.shape[dim] % 2:
        raise ValueError(
            f"a rank's share must be two chunks of equal length, but has {x.shape[dim]} positions"
        )
    early, late = all_gather(x, group, gradient).chunk(2, dim % x.dim() + 1)
    return torch.cat([*early, *reversed(late.unbind())], dim)
