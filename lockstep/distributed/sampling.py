"""The distribution that tokens are drawn from, computed the same way for drawing and for scoring.

A learner that scores under another distribution than the sampler drew from (temperature forgotten, top-p not
renormalised) sees importance ratios that are wrong by a factor, however equal the weights are.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lockstep.distributed.hidden import hidden_logprobs
from lockstep.distributed.shard import WHOLE, Shard
from lockstep.distributed.softmax import Scoring, block_sums
from lockstep.distributed.support import support_floor
from lockstep.distributed.vocab import vocab_logprobs
from lockstep.types import SamplingParams

_ROWS = 256


@dataclass(frozen=True)
class TrainingSamplingParams:
    """What shaped the distribution that tokens were drawn from, by the names that NeMo RL gives them.

    Attributes:
        top_k: How many of the likeliest tokens; None, or a number below 1: all.
        top_p: The probability to reach; 1: all tokens.
        temperature: What divides the logits.
    """

    top_k: int | None = None
    top_p: float = 1.0
    temperature: float = 1.0

    @property
    def full_support(self) -> bool:
        """Whether every token can be drawn."""
        return (self.top_k is None or self.top_k < 1) and self.top_p >= 1.0


def apply_top_k_top_p(
    logits: Tensor, top_k: int | None, top_p: float | None, chunk_size: int | None = _ROWS
) -> tuple[Tensor, Tensor | None]:
    """Sets the logits of tokens that top-k and top-p exclude to minus infinity; their gradient is 0.

    Args:
        logits: Logits [..., V], of any floating type; the temperature is already applied.
        top_k: How many to keep, with all that equal the last; None, or a number below 1: all.
        top_p: The probability to reach, after top-k; None, or from 1 on: all.
        chunk_size: The most rows to search at once; it changes memory and speed, never values.

    Returns:
        The logits in their own type, and which of them are kept, bool [..., V]; the logits themselves and None where
        neither excludes any.
    """
    if TrainingSamplingParams(top_k, 1.0 if top_p is None else top_p).full_support:
        return logits, None
    rows = logits.detach().reshape(-1, logits.shape[-1])
    floor = support_floor(rows, top_k=top_k, top_p=top_p, most_rows=chunk_size).view(logits.shape[:-1])
    outside = logits < floor[..., None]
    return logits.masked_fill(outside, float("-inf")), ~outside


def token_scores(
    logits_MV: Tensor, token_M: Tensor, sampling: SamplingParams, shard: Shard = WHOLE
) -> tuple[Tensor, Tensor]:
    """log π(token) and the entropy, under the sampling distribution; differentiable.

    Args:
        logits_MV: Logits, of any floating type; this rank's columns.
        token_M: Tokens already drawn. They belong to the support even where rounding, or an update since, puts them
            outside, so that scoring a drawn token never gives minus infinity.
        sampling: The distribution; greedy scoring is that of temperature 1.
        shard: Which columns these are.

    Returns:
        Nats, fp32 [M] each.
    """
    floor_M = _floor(logits_MV, sampling, shard)
    return _own(vocab_logprobs(logits_MV, token_M[:, None], _scoring(sampling, shard=shard), floor_M))


def hidden_scores(
    hidden_MD: Tensor, weight_vD: Tensor, token_M: Tensor, sampling: SamplingParams, shard: Shard = WHOLE
) -> tuple[Tensor, Tensor]:
    """`token_scores` of the logits hidden · weightᵀ, which never exist whole; where every token can be drawn."""
    assert sampling.full_support, "top-k and top-p need the logits"
    return _own(hidden_logprobs(hidden_MD, weight_vD, token_M[:, None], _scoring(sampling, shard=shard)))


def _floor(logits_MV: Tensor, sampling: SamplingParams, shard: Shard = WHOLE) -> Tensor | None:
    """The threshold of the support [M]; None where every token belongs to it."""
    if sampling.full_support:
        return None
    return support_floor(logits_MV, shard, top_k=sampling.top_k, top_p=sampling.top_p, temperature=sampling.temperature)


def _scoring(sampling: SamplingParams, entropy: bool = True, shard: Shard = WHOLE) -> Scoring:
    temperature = 1.0 if sampling.greedy else sampling.temperature
    return Scoring(shard=shard, temperature=temperature, entropy=entropy, chosen=True)


def _own(scores: tuple[Tensor, Tensor | None]) -> tuple[Tensor, Tensor]:
    logprob_M1, entropy_M = scores
    assert entropy_M is not None, "it was asked for"
    return logprob_M1[:, 0], entropy_M


def draw(logits_MV: Tensor, uniform_M: Tensor, sampling: SamplingParams) -> tuple[Tensor, Tensor]:
    """Draws one token per row by inverting the distribution function at a uniform number; the argmax where greedy.

    Args:
        logits_MV: Logits.
        uniform_M: Numbers in (0, 1), float64; the same number draws the same token in any batch.

    Returns:
        Tokens, int64 [M], and their log-probabilities under the sampling distribution, fp32 [M].
    """
    scoring, z_MV = _scoring(sampling, entropy=False), logits_MV.float()
    weight_MV = torch.empty_like(z_MV)
    row = block_sums(z_MV, weight_MV, _floor(logits_MV, sampling), scoring)
    if sampling.greedy:
        token_M = z_MV.argmax(-1)
    else:
        cumulative = weight_MV.cumsum(-1, dtype=torch.float64)
        token_M = torch.searchsorted(cumulative, (uniform_M * cumulative[:, -1])[:, None], right=True)[:, 0]
    above_M = z_MV.gather(-1, token_M[:, None])[:, 0] - row.maximum
    return token_M, above_M / scoring.temperature - row.total.log()
