"""Cross-entropy of two softmaxes over the same vocabulary shards: H(q, p) = −Σ_j q_j log p_j.

One pass over both, two all-reduces, and a gradient p − q that needs none. Letters: M rows, v this
rank's columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from lockstep_logprobs.collectives import all_reduce
from lockstep_logprobs.kernel import register_kernel
from lockstep_logprobs.shard import split_rows
from lockstep_logprobs.softmax import RowSums, finite_maximum, sum_block, write_log2_probability


@dataclass(frozen=True)
class CrossEntropy:
    """H(q, p), and the numbers that its gradient needs.

    Attributes:
        value: H(q, p), nats, fp32 [M].
        maxima: Maxima of the rows of p and of q [2, M].
        log_totals: log Σ exp(z − maximum) of the rows of p and of q [2, M].
    """

    value: Tensor
    maxima: Tensor
    log_totals: Tensor


def cross_entropy(
    logits_Mv: Tensor, target_Mv: Tensor, group: dist.ProcessGroup | None
) -> CrossEntropy:
    """H(softmax(target), softmax(logits)) of each row; log p does not matter if q is 0."""
    max_p, sum_p, max_q, sum_q, cross_M = _cross_entropy_sums(logits_Mv, target_Mv).unbind()
    maxima = all_reduce(torch.stack([max_p, max_q]), group, dist.ReduceOp.MAX)
    share_p = RowSums(max_p, sum_p, None).rebase_maximum(maxima[0], 1.0)
    share_q = RowSums(max_q, sum_q, None).rebase_maximum(maxima[1], 1.0)
    scale_M = (max_q - finite_maximum(maxima[1])).exp()
    moved_M = scale_M * cross_M + share_q.total * (max_p - finite_maximum(maxima[0]))
    shares = torch.stack([share_p.total, share_q.total, torch.where(scale_M > 0, moved_M, 0.0)])
    total_p, total_q, cross_M = all_reduce(shares, group)
    value = total_p.log() - cross_M / total_q
    finite = torch.stack([finite_maximum(m) for m in maxima])
    return CrossEntropy(value, finite, torch.stack([total_p.log(), total_q.log()]))


@register_kernel(
    "(Tensor logits, Tensor target) -> Tensor",
    lambda logits, target: logits.new_empty((5, logits.shape[0]), dtype=torch.float32),
)
def _cross_entropy_sums(logits: Tensor, target: Tensor) -> Tensor:
    """Sums over these columns, fp32 [5, M].

    Maximum and total of p, of q, and Σ exp(zq − mq)·(zp − mp).
    """
    of_p, of_q = (
        RowSums.build_empty(len(logits), entropy=False, device=logits.device) for _ in range(2)
    )
    cross_M = torch.zeros_like(of_p.total)
    for piece in split_rows(len(logits), logits.shape[1], logits.device):
        p = logits[piece]
        q = target[piece]
        work = torch.empty_like(p, dtype=torch.float32)
        of_p[piece] = sum_block(p, work, None)
        of_q[piece] = sum_block(q, work, None)  # leaves exp(zq − mq) in `work`
        cross_M[piece] = work.mul_(p - finite_maximum(of_p.maximum[piece])[:, None]).nansum(-1)
    return torch.cat([of_p.stack_rows(), of_q.stack_rows(), cross_M[None]])


@register_kernel(
    "(Tensor logits, Tensor target, Tensor maxima, Tensor log_totals, Tensor gradient) -> Tensor",
    lambda logits, *_: torch.empty_like(logits, memory_format=torch.contiguous_format),
)
def cross_entropy_gradient(
    logits: Tensor, target: Tensor, maxima: Tensor, log_totals: Tensor, gradient: Tensor
) -> Tensor:
    """(p − q)·gradient: this rank's gradient of the logits [M, v], in their type."""
    result_Mv = torch.empty_like(logits, memory_format=torch.contiguous_format)
    for piece in split_rows(len(logits), logits.shape[1], logits.device):
        p, q = (torch.empty_like(logits[piece], dtype=torch.float32) for _ in range(2))
        for work, z, maximum, log_total in zip(
            (p, q), (logits, target), maxima, log_totals, strict=True
        ):
            write_log2_probability(work, z[piece], maximum[piece], log_total[piece])
            work.exp2_()
        result_Mv[piece] = p.sub_(q).mul_(gradient[piece, None])
    return result_Mv
