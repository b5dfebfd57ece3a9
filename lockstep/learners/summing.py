"""Sums of gradients in one order, so that layouts train the same weights.

A batch is cut into blocks of rows. The sum over blocks i, i + s, i + 2s, … is that over
i, i + 2s, … plus that over i + s, i + 3s, …, down to single blocks. So with s ranks, a power of 2,
rank i has one subtree, and the ranks add the rest of the same tree.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from lockstep.learners.pieces import ParameterPiece
from lockstep_logprobs.collectives import all_gather, all_reduce, group_rank, group_size


def order_blocks(count: int, first: int = 0, step: int = 1) -> Iterator[tuple[int, int]]:
    """The blocks of the tree, left to right: each with the number of additions that follow it.

    An addition adds the newest two sums.
    """
    if first + step >= count:
        yield first, 0
        return
    yield from order_blocks(count, first, 2 * step)
    *right, (last, additions) = order_blocks(count, first + step, 2 * step)
    yield from right
    yield last, additions + 1


class GradientSum:
    """Adds the gradients of blocks, given in the order of `order_blocks`; keeps few at a time."""

    def __init__(self) -> None:
        self._sums: list[list[Tensor]] = []

    def add_block(self, gradients: list[Tensor], additions: int) -> None:
        """Adds the gradients of a block, which it owns, and then sums of sums."""
        self._sums.append(gradients)
        for _ in range(additions):
            right = self._sums.pop()
            add_each(self._sums[-1], right)

    def take_total(self) -> list[Tensor] | None:
        """The sum over all blocks; None if there was none."""
        if not self._sums:
            return None
        (total,) = self._sums
        return total


def add_each(totals: Sequence[Tensor], others: Sequence[Tensor]) -> None:
    """Adds tensors in place."""
    for total, other in zip(totals, others, strict=True):
        total.add_(other)


def add_over_ranks(
    pieces: Sequence[ParameterPiece],
    whole: list[Tensor] | None,
    group: dist.ProcessGroup | None,
    shards: int,
) -> list[Tensor]:
    """Adds the ranks' gradients of whole parameters; returns those of this rank's pieces.

    Args:
        pieces: This rank's pieces, cut over `shards` ranks in their first dimension, or whole.
        whole: This rank's gradients; None if it had no block.
        group: The ranks; None for one process.
        shards: Ranks of a replica, which are neighbors.
    """
    if group is None:
        assert whole is not None, "one process has all blocks"
        return whole
    shapes = [piece.parameter.shape for piece in pieces]
    device = pieces[0].local.device
    has_N = all_gather(torch.tensor([whole is not None], device=device), group)[:, 0].tolist()
    given = whole or [torch.zeros(shape, device=device) for shape in shapes]
    found = list[Tensor]()
    for piece, gradient in zip(pieces, given, strict=True):
        if piece.cut_over:
            parts = _swap_shares(gradient, piece.local, group, shards)
        else:
            parts = list(all_gather(gradient, group))
        total = _add_tree(parts, has_N)
        assert total is not None, "a batch has at least one block"
        found.append(total)
    return found


def _swap_shares(
    gradient: Tensor, local: Tensor, group: dist.ProcessGroup, shards: int
) -> list[Tensor]:
    """Each rank's gradient of this rank's share of the rows of a parameter."""
    ranks = group_size(group)
    rows = gradient.shape[0]
    most = -(-rows // shards)
    row_size = math.prod(gradient.shape[1:])
    sent = [row_size * max(0, min(most, rows - shard * most)) for shard in range(shards)]
    sent *= ranks // shards
    own = sent[group_rank(group)]
    received = gradient.new_empty(ranks * own)
    copies = gradient.reshape(-1).repeat(ranks // shards)
    dist.all_to_all_single(received, copies, [own] * ranks, sent, group=group)
    return [part.view(local.shape) for part in received.view(ranks, own)]


def _add_tree(
    parts: Sequence[Tensor], has: Sequence[bool], first: int = 0, step: int = 1
) -> Tensor | None:
    """The sum over the ranks that have a block, in the order of the tree."""
    if step == len(parts):
        return parts[first] if has[first] else None
    left = _add_tree(parts, has, first, 2 * step)
    right = _add_tree(parts, has, first + step, 2 * step)
    if left is None or right is None:
        return left
    return left + right


def compute_ordered_norm(
    pieces: Iterable[ParameterPiece],
    gradients: Iterable[Tensor],
    written: Iterable[bool],
    group: dist.ProcessGroup | None,
) -> Tensor:
    """The L2 norm of all gradients: squares are added by row of a parameter, then in one order.

    Args:
        pieces: This rank's pieces.
        gradients: Their gradients.
        written: Whether this rank counts a piece, of all ranks that hold it.
        group: The ranks; None for one process.
    """
    squares = list[Tensor]()
    for piece, gradient, counts in zip(pieces, gradients, written, strict=True):
        shape = piece.parameter.shape
        rows = torch.zeros(shape[:1] or (1,), dtype=torch.float64, device=gradient.device)
        if counts and gradient.numel():
            (box,) = piece.boxes
            start = box.offset[0] if box.offset else 0
            of_rows = gradient.double().square().reshape(box.shape[0] if box.shape else 1, -1)
            rows[start : start + len(of_rows)] = of_rows.sum(1)
        squares.append(rows)
    all_rows = all_reduce(torch.cat(squares), group)
    if all_rows.is_cuda:  # a device's own order does not depend on the layout
        return all_rows.sum().sqrt().float()
    return torch.tensor(math.sqrt(math.fsum(all_rows.tolist())))
