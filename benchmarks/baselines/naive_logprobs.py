"""The other side of `benchmarks.logprobs`: sharded log-probabilities as one writes them first, left
to autograd.

The logits are cast to fp32, log-softmax is written out with one all-reduce for the maxima and one
for the sums of exponentials, its columns are picked with a mask, and a third all-reduce gives them
to all ranks. Sampling brings whole rows together by an all-to-all and sorts them. Every function
takes a process group, and None means one process.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

Group = dist.ProcessGroup | None


class SumOverRanks(torch.autograd.Function):
    """All-reduce.

    What follows is either the same on all ranks, or its gradients have to be summed as well.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group, followed_alike: bool) -> Tensor:
        ctx.group = group
        ctx.followed_alike = followed_alike
        return reduced(x.clone(), group)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        (grad,) = grad_outputs
        return grad if ctx.followed_alike else reduced(grad.clone(), ctx.group), None, None


class Gathered(torch.autograd.Function):
    """The ranks' tensors end to end; backward sums over ranks, or keeps to its own where what
    follows is alike.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup, followed_alike: bool) -> Tensor:
        ctx.group = group
        ctx.followed_alike = followed_alike
        out = x.new_empty(dist.get_world_size(group) * x.shape[0], *x.shape[1:])
        dist.all_gather_into_tensor(out, x.contiguous(), group)
        return out

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        (grad,) = grad_outputs
        grad = grad if ctx.followed_alike else reduced(grad.clone(), ctx.group)
        return grad.chunk(dist.get_world_size(ctx.group))[dist.get_rank(ctx.group)], None, None


class WholeRows(torch.autograd.Function):
    """From all rows of this rank's columns [M, v] to all columns of this rank's rows [M/TP, V], and
    back.
    """

    @staticmethod
    def forward(ctx: Any, x_Mv: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        received = torch.empty_like(x_Mv)
        dist.all_to_all_single(received, x_Mv.contiguous(), group=group)
        return torch.cat(received.chunk(dist.get_world_size(group)), 1)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        (grad,) = grad_outputs
        sent = torch.cat(grad.chunk(dist.get_world_size(ctx.group), 1))
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=ctx.group)
        return received, None


def reduced(x: Tensor, group: Group, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> Tensor:
    """`x`, replaced by its sum or maximum over the ranks."""
    if group is not None:
        dist.all_reduce(x, op, group)
    return x


def log_softmax(logits: Tensor, group: Group) -> Tensor:
    """This rank's columns of log-softmax, fp32."""
    logits = logits.float()
    shifted = logits - reduced(logits.detach().amax(-1, keepdim=True), group, dist.ReduceOp.MAX)
    total = SumOverRanks.apply(shifted.exp().sum(-1, keepdim=True), group, False)
    return shifted - total.log()


def columns(x: Tensor, index: Tensor, start: int, group: Group) -> Tensor:
    """The columns `index` [..., K], ids of the whole vocabulary, of `x` [..., v], whose first is
    number `start`.
    """
    inside = (index >= start) & (index < start + x.shape[-1])
    picked = x.gather(-1, (index - start).clamp(0, x.shape[-1] - 1)) * inside
    return SumOverRanks.apply(picked, group, True)


def gather_logprobs(logits: Tensor, index: Tensor, start: int, group: Group) -> Tensor:
    """log p of the tokens `index` [..., K]."""
    return columns(log_softmax(logits, group), index, start, group)


def logprobs(logits: Tensor, target: Tensor, start: int, group: Group) -> Tensor:
    """log p of one token per position."""
    return gather_logprobs(logits, target[..., None], start, group)[..., 0]


def negative_entropy(logits: Tensor, group: Group) -> Tensor:
    """Σ p log p of each position."""
    logp = log_softmax(logits, group)
    return SumOverRanks.apply((logp.exp() * logp).sum(-1), group, True)


def cross_entropy(student: Tensor, teacher: Tensor, group: Group) -> Tensor:
    """−Σ p log q of each position, where p is the teacher's and q the student's distribution."""
    p = log_softmax(teacher, group).exp()
    return SumOverRanks.apply(-(p * log_softmax(student, group)).sum(-1), group, True)


def hidden_logprobs(
    hidden_SBD: Tensor, target_BS: Tensor, weight_vD: Tensor, start: int, group: Any
) -> Tensor:
    """log p [B, S] from this rank's positions of the hidden states: gathered, multiplied out, and
    then as above.
    """
    whole_SBD = Gathered.apply(hidden_SBD, group, False)
    return logprobs(whole_SBD @ weight_vD.t(), target_BS.t(), start, group).t()


def sampled_logprobs(
    logits: Tensor, target: Tensor, group: Any, top_k: int | None, top_p: float
) -> Tensor:
    """log p under top-k, then top-p: every rank sorts whole rows of its share of the positions."""
    rows_NV = WholeRows.apply(logits.view(-1, logits.shape[-1]), group).float()
    own_N = target.reshape(-1).chunk(dist.get_world_size(group))[dist.get_rank(group)]
    outside_NV = _outside(rows_NV.detach(), top_k, top_p)
    logp_NV = rows_NV.masked_fill(outside_NV, -torch.inf).log_softmax(-1)
    own = logp_NV.gather(-1, own_N[:, None])[:, 0]
    return Gathered.apply(own, group, True).view_as(target)


def _outside(rows_NV: Tensor, top_k: int | None, top_p: float) -> Tensor:
    """Which tokens top-k and top-p leave out, bool [N, V]."""
    outside_NV = torch.zeros_like(rows_NV, dtype=torch.bool)
    if top_k is not None:
        outside_NV = rows_NV < rows_NV.topk(top_k).values[:, -1:]
    if top_p < 1.0:
        ordered, order = rows_NV.masked_fill(outside_NV, -torch.inf).sort(-1)
        ordered_out = ordered.softmax(-1).cumsum(-1) <= 1 - top_p
        ordered_out[:, -1] = False
        outside_NV = outside_NV | ordered_out.scatter(-1, order, ordered_out)
    return outside_NV


def distillation(
    student: Tensor, teacher_topk: Tensor, index: Tensor, start: int, group: Group
) -> tuple[Tensor, Tensor, Tensor]:
    """log p at the teacher's tokens, the teacher's own, and Σ p log p; without the last
    position.
    """
    picked = gather_logprobs(student, index, start, group)
    return (
        picked[:, :-1],
        teacher_topk.float().log_softmax(-1)[:, :-1],
        negative_entropy(student, group)[:, :-1],
    )


def topk(logits: Tensor, k: int, group: Any) -> tuple[Tensor, Tensor]:
    """The largest logits and their tokens: whole rows on all ranks, and top-k of them."""
    shards = [torch.empty_like(logits) for _ in range(dist.get_world_size(group))]
    dist.all_gather(shards, logits, group)
    return torch.cat(shards, -1).float().topk(k)


def packed_logprobs(
    logits: Tensor,
    target: Tensor,
    bounds: Tensor,
    width: int,
    start: int,
    group: Group,
    context: Group,
) -> Tensor:
    """log p of packed sequences [B, width − 1], each on its own: next tokens, the zig-zag, and the
    gather.
    """
    share = 1 if context is None else dist.get_world_size(context)
    lengths = [int(bounds[i + 1] - bounds[i]) for i in range(len(bounds) - 1)]
    following = [sequence.roll(-1) for sequence in target[0].split(lengths)]
    own = torch.cat([_zigzag(sequence, context) for sequence in following])
    logp = logprobs(logits, own[None], start, group)[0]
    rows = [
        _whole(piece, context)[: width - 1]
        for piece in logp.split([length // share for length in lengths])
    ]
    return torch.stack(
        [
            F.pad(row[: length - 1], (0, width - len(row[: length - 1]) - 1))
            for row, length in zip(rows, lengths, strict=True)
        ]
    )


def _zigzag(x: Tensor, context: Group) -> Tensor:
    """This rank's two chunks of a sequence."""
    if context is None:
        return x
    chunks = x.chunk(2 * dist.get_world_size(context))
    rank = dist.get_rank(context)
    return torch.cat([chunks[rank], chunks[-1 - rank]])


def _whole(x: Tensor, context: Group) -> Tensor:
    """The sequence of which each rank has two chunks."""
    if context is None:
        return x
    chunks = Gathered.apply(x, context, False).chunk(2 * dist.get_world_size(context))
    return torch.cat([*chunks[::2], *reversed(chunks[1::2])])
