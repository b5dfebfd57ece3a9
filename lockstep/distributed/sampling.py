"""The sampling distribution, computed the same way for sampling and scoring.

A learner that scores under a different distribution from the sampler's (temperature forgotten,
top-p not renormalized) gets wrong importance ratios, even with equal weights.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lockstep.core.types import SamplingParams
from lockstep_logprobs.collectives import all_reduce
from lockstep_logprobs.hidden import hidden_logprobs
from lockstep_logprobs.kernel import runs_fused
from lockstep_logprobs.shard import WHOLE, Shard, split_rows
from lockstep_logprobs.softmax import (
    NOTHING,
    TILE_COLUMNS,
    RowSums,
    Scoring,
    column_tiles,
    pick_logits,
    reduce_over_ranks,
    reduce_tiles,
    sum_block,
    sum_tiles,
    to_fp32,
)
from lockstep_logprobs.support import support_floor
from lockstep_logprobs.topk import vocab_topk
from lockstep_logprobs.vocab import vocab_logprobs

_ROWS = 256


def token_scores(
    logits_MV: Tensor,
    token: Tensor,
    sampling: SamplingParams,
    shard: Shard = WHOLE,
    row_invariant: bool = False,
    entropy: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """log π(token) and the entropy, under the sampling distribution; differentiable.

    Args:
        logits_MV: Logits, of any floating type; this rank's columns.
        token: Sampled tokens [M]; they count as part of the support even if rounding, or an update
            since, puts them outside, so that a sampled token never scores minus infinity. Or
            several tokens per row [M, K], only without min-p, top-k and top-p.
        sampling: Sampling distribution; greedy sampling is scored at temperature 1.
        shard: This rank's columns.
        row_invariant: See `lockstep_logprobs.softmax.Scoring`.
        entropy: Whether to compute it.

    Returns:
        log π, nats, fp32 in the shape of the tokens; the entropy, nats, fp32 [M], or None.
    """
    every = token.dim() == 2 and token.shape[1] >= logits_MV.shape[1]
    if every and shard.group is None and not row_invariant:
        return _score_all(logits_MV, token, sampling, entropy)
    floor_M = _find_threshold(logits_MV, sampling, shard)
    scoring = _build_scoring(sampling, entropy, shard, row_invariant)
    return _shape_like(
        token, vocab_logprobs(logits_MV, _as_columns(token, sampling), scoring, floor_M)
    )


def hidden_scores(
    hidden_MD: Tensor,
    weight_vD: Tensor,
    token: Tensor,
    sampling: SamplingParams,
    shard: Shard = WHOLE,
    row_invariant: bool = False,
    entropy: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """`token_scores` from hidden states, without materializing logits; no filters or penalties."""
    assert not sampling.needs_logits, "penalties, min-p, top-k and top-p need the logits"
    scoring = _build_scoring(sampling, entropy, shard, row_invariant)
    return _shape_like(
        token, hidden_logprobs(hidden_MD, weight_vD, _as_columns(token, sampling), scoring)
    )


def _score_all(
    logits_MV: Tensor, token_MK: Tensor, sampling: SamplingParams, entropy: bool
) -> tuple[Tensor, Tensor | None]:
    """Scores K ≥ V tokens per row by a full log-softmax, which costs less than K look-ups."""
    assert sampling.full_support, "only a sampled token is known to belong to the support"
    logprob_MV = (logits_MV.float() / sampling.divisor).log_softmax(-1)
    # If a logit is −∞, 0 · −∞ would be NaN.
    if entropy:
        entropy_M = -(logprob_MV.exp() * logprob_MV.clamp(min=NOTHING)).sum(-1)
    else:
        entropy_M = None
    return logprob_MV.gather(1, token_MK), entropy_M


def find_likeliest(
    logits_Mv: Tensor, k: int, shard: Shard = WHOLE, row_invariant: bool = False
) -> tuple[Tensor, Tensor]:
    """The k likeliest tokens of each row, and their log-probabilities, nats (differentiable).

    `row_invariant`: see `lockstep_logprobs.softmax.Scoring`.

    Returns:
        int64 and fp32 [M, k], likeliest first; if k is the size of the vocabulary or more, all
        tokens in the order of their ids.
    """
    if shard.group is None and k >= logits_Mv.shape[1]:
        token_Mk = torch.arange(logits_Mv.shape[1], device=logits_Mv.device)
        token_Mk = token_Mk.expand(len(logits_Mv), -1)
        if not row_invariant:
            return token_Mk, logits_Mv.float().log_softmax(-1)
    else:
        _, token_Mk = vocab_topk(logits_Mv, k, shard, max_rows=_ROWS)
    if _is_full_vocabulary(token_Mk, logits_Mv.shape[1], shard):
        token_Mk = token_Mk.sort(-1).values
    scoring = Scoring(shard=shard, row_invariant=row_invariant)
    logprob_Mk, _ = vocab_logprobs(logits_Mv, token_Mk, scoring)
    return token_Mk, logprob_Mk


def _is_full_vocabulary(token_Mk: Tensor, columns: int, shard: Shard) -> bool:
    """True if each row's k tokens are the full vocabulary; this rank has `columns` columns."""
    k = token_Mk.shape[1]
    if shard.group is None or not len(token_Mk) or int(token_Mk[0].max()) >= k:
        return False
    # rare, and the same on all ranks
    total = all_reduce(torch.tensor(columns, device=token_Mk.device), shard.group)
    return int(total) == k


def _find_threshold(
    logits_MV: Tensor, sampling: SamplingParams, shard: Shard = WHOLE
) -> Tensor | None:
    """The threshold of the support [M]; None if every token belongs to it."""
    if sampling.full_support:
        return None
    return support_floor(
        logits_MV,
        shard,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        temperature=sampling.temperature,
    )


def _build_scoring(
    sampling: SamplingParams, entropy: bool, shard: Shard = WHOLE, row_invariant: bool = False
) -> Scoring:
    return Scoring(
        shard=shard,
        temperature=sampling.divisor,
        entropy=entropy,
        sampled=True,
        row_invariant=row_invariant,
    )


def _as_columns(token: Tensor, sampling: SamplingParams) -> Tensor:
    assert token.dim() == 1 or sampling.full_support, (
        "only a sampled token is known to belong to the support"
    )
    if token.dim() == 2:
        return token
    return token[:, None]


def _shape_like(
    token: Tensor, scores: tuple[Tensor, Tensor | None]
) -> tuple[Tensor, Tensor | None]:
    logprob_MK, entropy_M = scores
    return logprob_MK.view(token.shape), entropy_M


def draw_tokens(
    logits_MV: Tensor, uniform_M: Tensor, sampling: SamplingParams, row_invariant: bool = False
) -> tuple[Tensor, Tensor]:
    """Samples one token per row by inverse transform of a uniform number; the argmax if greedy.

    Args:
        logits_MV: Logits.
        uniform_M: Uniform numbers in (0, 1), float64; equal numbers give equal tokens in any batch.
        row_invariant: See `lockstep_logprobs.softmax.Scoring`; log-probabilities are then those of
            `token_scores`.

    Returns:
        Tokens, int64 [M], and their log-probabilities under the sampling distribution, fp32 [M];
    for rows with NaN or infinite logits, any token, with NaN.
    """
    token_M, logprob_M = _draw_plain(logits_MV, uniform_M, sampling, row_invariant)
    # Triton's kernel sums differently
    if row_invariant and len(logits_MV) and runs_fused(logits_MV):
        logprob_M, _ = token_scores(logits_MV, token_M, sampling, row_invariant=True, entropy=False)
    return token_M, logprob_M


def _draw_plain(
    logits_MV: Tensor, uniform_M: Tensor, sampling: SamplingParams, row_invariant: bool
) -> tuple[Tensor, Tensor]:
    """`draw_tokens`, with log-probabilities by PyTorch's operations."""
    if not len(logits_MV):
        return torch.zeros_like(uniform_M, dtype=torch.int64), torch.zeros_like(
            uniform_M, dtype=torch.float32
        )
    if sampling.full_support and logits_MV.shape[1] <= TILE_COLUMNS:
        return _draw_from_one_tile(logits_MV.float(), uniform_M, sampling, row_invariant)
    scoring = _build_scoring(sampling, entropy=False, row_invariant=row_invariant)
    row, key_MT, floor_M = _sum_rows(logits_MV, scoring, sampling)
    if sampling.greedy:
        tile_M = key_MT.argmax(-1)
        place_M = _gather_tile(logits_MV, tile_M).argmax(-1)
    else:
        tile_M, above_M = _find_crossing(key_MT, uniform_M)
        below_M = 1.0 - above_M / key_MT.gather(1, tile_M[:, None])[:, 0]
        z_Mc = _gather_tile(logits_MV, tile_M)
        weight_Mc = torch.empty_like(z_Mc)
        sum_block(z_Mc, weight_Mc, floor_M, scoring.temperature, row_invariant=True)
        place_M, _ = _find_crossing(
            weight_Mc, below_M.clamp(0.0, 1.0 - torch.finfo(torch.float64).eps)
        )
    token_M1 = (tile_M * TILE_COLUMNS + place_M).clamp_(max=logits_MV.shape[1] - 1)[:, None]
    scores = reduce_over_ranks(
        row, pick_logits(logits_MV, token_M1, 0), token_M1, logits_MV.shape[1], scoring, floor_M
    )
    return token_M1[:, 0], scores.logprob[:, 0]


def _draw_from_one_tile(
    z_MV: Tensor, uniform_M: Tensor, sampling: SamplingParams, row_invariant: bool
) -> tuple[Tensor, Tensor]:
    """`draw_tokens` from an unfiltered vocabulary of one tile: the same bits, in fewer
    operations.
    """
    weight_MV = torch.empty_like(z_MV)
    row = sum_block(z_MV, weight_MV, None, sampling.divisor, row_invariant=row_invariant)
    if sampling.greedy:
        token_M = z_MV.argmax(-1)
    else:
        token_M = _find_crossing(weight_MV, uniform_M)[0]
    above_M = z_MV.gather(-1, token_M[:, None])[:, 0] - row.maximum
    return token_M, above_M / sampling.divisor - row.total.log()


def _sum_rows(
    logits_MV: Tensor, scoring: Scoring, sampling: SamplingParams
) -> tuple[RowSums, Tensor, Tensor | None]:
    """Sums the rows, block by block; each block is read once.

    Returns:
        The sums of each row; the weight of each of its tiles [M, tiles], or the tile's largest
        logit if greedy; and the threshold of the support.
    """
    sums = list[Tensor]()
    keys = list[Tensor]()
    floors = list[Tensor]()
    memory: Tensor | None = None
    for rows in split_rows(len(logits_MV), logits_MV.shape[1], logits_MV.device):
        if memory is None:
            memory = logits_MV.new_empty((2, *logits_MV[rows].shape), dtype=torch.float32)
        z_mV, work_mV = memory[:, : rows.stop - rows.start]
        z_mV = to_fp32(logits_MV[rows], z_mV)
        floor_m = _find_threshold(z_mV, sampling)
        floors += [] if floor_m is None else [floor_m]
        if scoring.row_invariant:
            sums.append(sum_tiles(z_mV, work_mV, floor_m, scoring.temperature).stack_rows())
            continue
        sums.append(sum_block(z_mV, work_mV, floor_m, scoring.temperature).stack_rows())
        keys.append(
            reduce_tiles(z_mV, torch.amax) if sampling.greedy else reduce_tiles(work_mV, torch.sum)
        )
    row = RowSums.from_rows(torch.cat(sums, 1))
    floor_M = torch.cat(floors) if floors else None
    if not scoring.row_invariant:
        return row, torch.cat(keys), floor_M
    tile = row
    row = row.merge_tiles(scoring.temperature)
    if sampling.greedy:
        return row, tile.maximum, floor_M
    return row, tile.rebase_maximum(row.maximum[:, None], scoring.temperature).total, floor_M


def _gather_tile(logits_MV: Tensor, tile_M: Tensor) -> Tensor:
    """One tile of each row, fp32 [M, c], padded with −∞."""
    tiles = list(column_tiles(logits_MV.shape[1], row_invariant=True))
    stop_M = torch.tensor([tile.stop for tile in tiles], device=tile_M.device)[tile_M]
    column_c = torch.arange(max(tile.stop - tile.start for tile in tiles), device=tile_M.device)
    column_Mc = tile_M[:, None] * TILE_COLUMNS + column_c
    z_Mc = logits_MV.gather(1, column_Mc.clamp(max=logits_MV.shape[1] - 1)).float()
    return z_Mc.masked_fill(column_Mc >= stop_M[:, None], -torch.inf)


def _find_crossing(weight_MK: Tensor, uniform_M: Tensor) -> tuple[Tensor, Tensor]:
    """Finds the index at which the running sum passes uniform · total [M], and the excess [M]."""
    sum_MK = weight_MK.cumsum(-1, dtype=torch.float64)
    aim_M1 = uniform_M[:, None] * sum_MK[:, -1:]
    # K, if sums are NaN
    place_M1 = torch.searchsorted(sum_MK, aim_M1, right=True).clamp_(max=sum_MK.shape[1] - 1)
    return place_M1[:, 0], (sum_MK.gather(-1, place_M1) - aim_M1)[:, 0]
