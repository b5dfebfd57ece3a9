"""Log-probabilities and entropy from logits of a vocabulary in shards: one pass, two all-reduces, none on the way back.

Letters: M rows, v this rank's columns, K tokens asked for in each row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lockstep.distributed.checks import check_rows
from lockstep.distributed.shard import Shard, blocks
from lockstep.distributed.softmax import (
    PLAIN,
    RowSums,
    Scores,
    Scoring,
    block_sums,
    exchange,
    keep,
    kept,
    picked,
)


def vocab_logprobs(
    logits_Mv: Tensor, token_MK: Tensor, scoring: Scoring = PLAIN, floor_M: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """log p of tokens, and the entropy, from this rank's logits; differentiable, and backward is without collectives.

    Args:
        logits_Mv: Logits of this rank's columns, of any floating type.
        token_MK: Token ids of the whole vocabulary, int64, the same on all ranks.
        scoring: Shard, temperature, and whether to compute the entropy.
        floor_M: The support is {z ≥ floor} (`support.support_floor`), in the logits' own units; None: every token.

    Returns:
        log p, nats, fp32 [M, K], with value and gradient 0 for ids outside the vocabulary; H, nats, fp32 [M], or None.

    Raises:
        ValueError: Shapes or types do not fit.
        RuntimeError: The ranks' shards overlap, or leave a gap.
    """
    check_rows(logits_Mv, token_MK, floor_M)
    return _VocabScores.apply(logits_Mv, token_MK, scoring, floor_M)


class _VocabScores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits_Mv: Tensor, token_MK: Tensor, scoring: Scoring, floor_M: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        scores = score(logits_Mv, token_MK, scoring, floor_M)
        keep(ctx, scores, scoring, floor_M, logits_Mv)
        ctx.set_materialize_grads(False)  # an entropy that no loss uses costs nothing
        return scores.logprob.clone(), None if scores.entropy is None else scores.entropy.clone()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor, None, None, None]:
        return score_gradient(ctx, *grad_outputs), None, None, None


def score(logits_Mv: Tensor, token_MK: Tensor, scoring: Scoring, floor_M: Tensor | None = None) -> Scores:
    """The forward pass of `vocab_logprobs`."""
    rows, columns = logits_Mv.shape
    sums = RowSums.of_nothing(rows, scoring.entropy, logits_Mv.device)
    picked_MK = torch.zeros_like(token_MK, dtype=torch.float32)
    for piece, work in _work_blocks(logits_Mv, scoring.most_rows):
        floor = None if floor_M is None else floor_M[piece]
        sums[piece] = block_sums(logits_Mv[piece], work, floor, scoring)
        picked_MK[piece] = picked(logits_Mv[piece], token_MK[piece], scoring.shard.start)
    return exchange(sums, picked_MK, token_MK, columns, scoring, floor_M)


def score_gradient(ctx: Any, gradient_MK: Tensor | None, gradient_M: Tensor | None) -> Tensor:
    """The gradient of this rank's logits [M, v], in their type, from what `keep` saved."""
    pull, (logits_Mv,) = kept(ctx, gradient_MK, gradient_M)
    result_Mv = torch.empty_like(logits_Mv, memory_format=torch.contiguous_format)
    for piece, work in _work_blocks(logits_Mv, ctx.scoring.most_rows, result_Mv):
        pull[piece].write_(work, logits_Mv[piece], ctx.scoring.shard.start)
        if work.dtype != result_Mv.dtype:
            result_Mv[piece].copy_(work)
    return result_Mv


def log_softmax(logits_Mv: Tensor, group: dist.ProcessGroup | None, exponential: bool = False) -> Tensor:
    """This rank's columns of the log-softmax [M, v], in the type of the logits, or of the softmax; no gradient."""
    nothing = torch.empty(len(logits_Mv), 0, dtype=torch.int64, device=logits_Mv.device)
    scores = score(logits_Mv, nothing, Scoring(shard=Shard(0, group)))
    result_Mv = torch.empty_like(logits_Mv, memory_format=torch.contiguous_format)
    for piece, work in _work_blocks(logits_Mv, None, result_Mv):
        torch.sub(logits_Mv[piece], scores.maximum[piece, None], out=work).sub_(scores.log_total[piece, None])
        result_Mv[piece] = work.exp_() if exponential else work
    return result_Mv


def _work_blocks(
    logits_Mv: Tensor, most_rows: int | None, result_Mv: Tensor | None = None
) -> Iterator[tuple[slice, Tensor]]:
    """Blocks of rows, each with fp32 memory to work in: that of an fp32 result, else the same every time."""
    rows, columns = logits_Mv.shape
    scratch: Tensor | None = None
    for piece in blocks(rows, columns, logits_Mv.device, most_rows):
        if result_Mv is not None and result_Mv.dtype == torch.float32:
            yield piece, result_Mv[piece]
            continue
        if scratch is None:
            scratch = torch.empty_like(logits_Mv[piece], dtype=torch.float32, memory_format=torch.contiguous_format)
        yield piece, scratch[: piece.stop - piece.start]
