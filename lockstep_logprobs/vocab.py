"""Log-probabilities and entropy from sharded logits: one pass, two all-reduces, none in backward.

Letters: M rows, v this rank's columns, K wanted tokens in each row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lockstep_logprobs.checks import check_rows, check_sampled
from lockstep_logprobs.collectives import all_reduce
from lockstep_logprobs.gradient import RowGradient, load_gradient, save_for_gradient
from lockstep_logprobs.kernel import load_fused, register_kernel, runs_fused
from lockstep_logprobs.shard import Shard, split_rows
from lockstep_logprobs.softmax import (
    PLAIN,
    RowScores,
    RowSums,
    Scoring,
    pick_logits,
    reduce_over_ranks,
    sum_block,
    sum_tiles,
)
from lockstep_logprobs.tiles import sum_shared_tiles


def vocab_logprobs(
    logits_Mv: Tensor, token_MK: Tensor, scoring: Scoring = PLAIN, floor_M: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """log p of tokens, and the entropy, from this rank's logits; differentiable.

    Backward has no collectives.

    Args:
        logits_Mv: Logits of this rank's columns, of any floating type.
        token_MK: Global token ids, int64, the same on all ranks.
        scoring: Shard, temperature, and whether to compute the entropy.
        floor_M: The support is {z ≥ floor} (`support.support_floor`), in the logits' own units;
            None: every token.

    Returns:
        log p, nats, fp32 [M, K], with value and gradient 0 for ids outside the vocabulary; H, nats,
        fp32 [M], or None.

    Raises:
        ValueError: Shapes or types do not match.
        RuntimeError: The ranks' shards overlap or leave a gap.
    """
    check_rows(logits_Mv, token_MK, floor_M)
    if scoring.sampled and floor_M is not None:
        check_sampled(token_MK)
    if scoring.overwrite and logits_Mv.requires_grad and logits_Mv.is_leaf:
        raise ValueError(
            "overwrite requires computed logits, but these are a leaf, whose values would be lost"
        )
    return _VocabScores.apply(logits_Mv, token_MK, scoring, floor_M)


class _VocabScores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits_Mv: Tensor, token_MK: Tensor, scoring: Scoring, floor_M: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        scores = score_vocab(logits_Mv, token_MK, scoring, floor_M)
        save_for_gradient(ctx, scores, scoring, floor_M, logits_Mv)
        ctx.set_materialize_grads(False)  # an entropy that no loss uses costs nothing
        return scores.logprob.clone(), None if scores.entropy is None else scores.entropy.clone()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor, None, None, None]:
        return score_gradient(ctx, *grad_outputs), None, None, None


def score_vocab(
    logits_Mv: Tensor, token_MK: Tensor, scoring: Scoring, floor_M: Tensor | None = None
) -> RowScores:
    """The forward pass of `vocab_logprobs`."""
    columns = logits_Mv.shape[1]
    if scoring.row_invariant and scoring.shard.group is not None:
        sums_RM, picked_MK = sum_shared_tiles(
            lambda rows, tile: logits_Mv[rows, max(tile.start, 0) : tile.stop],
            columns,
            token_MK,
            scoring,
            floor_M,
        )
    else:
        sums_RM, picked_MK = _row_sums(
            logits_Mv,
            token_MK,
            floor_M,
            scoring.shard.start,
            scoring.temperature,
            scoring.entropy,
            scoring.max_rows,
            scoring.row_invariant,
        )
    return reduce_over_ranks(
        RowSums.from_rows(sums_RM), picked_MK, token_MK, columns, scoring, floor_M
    )


def score_gradient(ctx: Any, gradient_MK: Tensor | None, gradient_M: Tensor | None) -> Tensor:
    """Gradient of this rank's logits [M, v], in their type, from `save_for_gradient`'s data."""
    row, (logits_Mv,) = load_gradient(ctx, gradient_MK, gradient_M)
    how = ctx.scoring.shard.start, ctx.scoring.max_rows
    if (
        not ctx.scoring.overwrite
        or torch.compiler.is_compiling()
        or logits_Mv.stride(1) != 1  # gaps within a row
        or logits_Mv.stride(0) < logits_Mv.shape[1]  # rows that share memory
    ):
        return _logits_gradient(logits_Mv, *row.schema_tensors, row.temperature, *how)
    result_Mv = logits_Mv.detach()
    if runs_fused(result_Mv):
        write = load_fused("rows", "write_gradient")
    else:
        write = _write_gradient
    write(result_Mv, result_Mv, row, *how)
    # Triton does not check, and a second use would be silently wrong
    torch.autograd.graph.increment_version(result_Mv)
    return result_Mv


@register_kernel(
    "(Tensor logits, Tensor token, Tensor? floor, int start, float temperature, bool entropy, "
    "int? max_rows, bool row_invariant) -> (Tensor, Tensor)",
    lambda logits, token, floor, start, temperature, entropy, max_rows, row_invariant: (
        logits.new_empty((2 + entropy, logits.shape[0]), dtype=torch.float32),
        token.new_empty(token.shape, dtype=torch.float32),
    ),
    fused="rows",
)
def _row_sums(
    logits: Tensor,
    token: Tensor,
    floor: Tensor | None,
    start: int,
    temperature: float,
    entropy: bool,
    max_rows: int | None,
    row_invariant: bool,
) -> tuple[Tensor, Tensor]:
    """The sums over these columns (`RowSums.stack_rows`), and their tokens' logits, fp32 [M, K]."""
    sums = RowSums.build_empty(len(logits), entropy, logits.device)
    tiles_RMT = list[Tensor]()
    picked_MK = torch.zeros_like(token, dtype=torch.float32)
    for piece, work in _work_blocks(logits, max_rows):
        z = logits[piece]
        own = None if floor is None else floor[piece]
        if row_invariant:
            tiles_RMT.append(sum_tiles(z, work, own, temperature, entropy).stack_rows())
        else:
            sums[piece] = sum_block(z, work, own, temperature, entropy)
        picked_MK[piece] = pick_logits(logits[piece], token[piece], start)
    if tiles_RMT:
        sums = RowSums.from_rows(torch.cat(tiles_RMT, 1)).merge_tiles(temperature)
    return sums.stack_rows(), picked_MK


@register_kernel(
    f"(Tensor logits, {RowGradient.SCHEMA}, float temperature, int start, int? max_rows) -> Tensor",
    lambda logits, *_: torch.empty_like(logits, memory_format=torch.contiguous_format),
    fused="rows",
)
def _logits_gradient(
    logits: Tensor,
    maximum: Tensor,
    log_total: Tensor,
    slope: Tensor | None,
    offset: Tensor,
    token: Tensor,
    own: Tensor,
    floor: Tensor | None,
    temperature: float,
    start: int,
    max_rows: int | None,
) -> Tensor:
    row = RowGradient(maximum, log_total, slope, offset, token, own, floor, temperature)
    result_Mv = torch.empty_like(logits, memory_format=torch.contiguous_format)
    _write_gradient(result_Mv, logits, row, start, max_rows)
    return result_Mv


def _write_gradient(
    result_Mv: Tensor, logits_Mv: Tensor, row: RowGradient, start: int, max_rows: int | None
) -> None:
    """Writes the gradient of logits, possibly in place."""
    for piece, work in _work_blocks(logits_Mv, max_rows, result_Mv):
        row[piece].write_gradient_(work, logits_Mv[piece], start)
        if work.dtype != result_Mv.dtype:
            result_Mv[piece].copy_(work)


def vocab_log_softmax(
    logits_Mv: Tensor,
    group: dist.ProcessGroup | None,
    temperature: float = 1.0,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """This rank's columns of the log-softmax [M, v], summed in fp32.

    Differentiable, by one all-reduce.

    Args:
        logits_Mv: Logits of this rank's columns.
        group: Ranks that hold the vocabulary.
        temperature: Divides the logits.
        dtype: Type of the result; None: the logits' type.
    """
    return _VocabLogSoftmax.apply(logits_Mv, group, temperature, dtype or logits_Mv.dtype)


class _VocabLogSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits_Mv: Tensor,
        group: dist.ProcessGroup | None,
        temperature: float,
        dtype: torch.dtype,
    ) -> Tensor:
        scores = _score_nothing(logits_Mv, group, temperature)
        ctx.group = group
        ctx.temperature = temperature
        ctx.save_for_backward(logits_Mv, scores.maximum, scores.log_total)
        return _log_softmax(logits_Mv, scores.maximum, scores.log_total, temperature, False, dtype)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor, None, None, None]:
        logits_Mv, maximum_M, log_total_M = ctx.saved_tensors
        (gradient_Mv,) = grad_outputs
        total_M = all_reduce(gradient_Mv.float().sum(-1), ctx.group)
        return (
            _log_softmax_gradient(
                logits_Mv, maximum_M, log_total_M, gradient_Mv, total_M, ctx.temperature
            ),
            None,
            None,
            None,
        )


@torch.no_grad()
def vocab_softmax(logits_Mv: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """This rank's columns of the softmax [M, v], in the type of the logits; no gradient."""
    scores = _score_nothing(logits_Mv, group, 1.0)
    return _log_softmax(logits_Mv, scores.maximum, scores.log_total, 1.0, True, logits_Mv.dtype)


def _score_nothing(
    logits_Mv: Tensor, group: dist.ProcessGroup | None, temperature: float
) -> RowScores:
    """The maximum and log-sum-exp of each row, without scoring a token."""
    nothing = torch.empty(len(logits_Mv), 0, dtype=torch.int64, device=logits_Mv.device)
    return score_vocab(logits_Mv, nothing, Scoring(shard=Shard(0, group), temperature=temperature))


@register_kernel(
    "(Tensor logits, Tensor maximum, Tensor log_total, float temperature, bool exponential, "
    "ScalarType dtype) -> Tensor",
    lambda logits, maximum, log_total, temperature, exponential, dtype: logits.new_empty(
        logits.shape, dtype=dtype
    ),
)
def _log_softmax(
    logits: Tensor,
    maximum: Tensor,
    log_total: Tensor,
    temperature: float,
    exponential: bool,
    dtype: torch.dtype,
) -> Tensor:
    result_Mv = logits.new_empty(logits.shape, dtype=dtype)
    for piece, work in _work_blocks(logits, None, result_Mv):
        _write_log_softmax(work, logits[piece], maximum[piece], log_total[piece], temperature)
        result_Mv[piece] = work.exp_() if exponential else work
    return result_Mv


@register_kernel(
    "(Tensor logits, Tensor maximum, Tensor log_total, Tensor gradient, Tensor total, float "
    "temperature) -> Tensor",
    lambda logits, *_: torch.empty_like(logits, memory_format=torch.contiguous_format),
)
def _log_softmax_gradient(
    logits: Tensor,
    maximum: Tensor,
    log_total: Tensor,
    gradient: Tensor,
    total: Tensor,
    temperature: float,
) -> Tensor:
    """(g − p·Σg)/T, with the sum over the full row."""
    result_Mv = torch.empty_like(logits, memory_format=torch.contiguous_format)
    for piece, work in _work_blocks(logits, None, result_Mv):
        _write_log_softmax(work, logits[piece], maximum[piece], log_total[piece], temperature)
        work.exp_().mul_(total[piece, None]).neg_().add_(gradient[piece])
        result_Mv[piece] = work.div_(temperature)
    return result_Mv


def _write_log_softmax(
    work: Tensor, z: Tensor, maximum_M: Tensor, log_total_M: Tensor, temperature: float
) -> None:
    torch.sub(z, maximum_M[:, None], out=work).div_(temperature).sub_(log_total_M[:, None])


def _work_blocks(
    logits_Mv: Tensor, max_rows: int | None, result_Mv: Tensor | None = None
) -> Iterator[tuple[slice, Tensor]]:
    """Blocks of rows, each with fp32 scratch.

    The scratch is the result's memory if that is fp32, otherwise one buffer for all blocks.
    """
    rows, columns = logits_Mv.shape
    scratch: Tensor | None = None
    for piece in split_rows(rows, columns, logits_Mv.device, max_rows):
        if result_Mv is not None and result_Mv.dtype == torch.float32:
            yield piece, result_Mv[piece]
            continue
        if scratch is None:
            scratch = torch.empty_like(
                logits_Mv[piece], dtype=torch.float32, memory_format=torch.contiguous_format
            )
        yield piece, scratch[: piece.stop - piece.start]
