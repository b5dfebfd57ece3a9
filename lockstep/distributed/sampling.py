"""The distribution that tokens are drawn from, computed the same way for drawing and for scoring.

A learner that scores under another distribution than the sampler drew from (temperature forgotten, top-p not
renormalised) sees importance ratios that are wrong by a factor, however equal the weights are.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from lockstep.distributed.support import support_floor
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
    top_k, top_p = top_k or 0, 1.0 if top_p is None else top_p
    if top_k < 1 and top_p >= 1.0:
        return logits, None
    rows = logits.detach().reshape(-1, logits.shape[-1])
    floor = support_floor(rows, top_k=top_k, top_p=top_p, most_rows=chunk_size).view(logits.shape[:-1])
    outside = logits < floor[..., None]
    return logits.masked_fill(outside, float("-inf")), ~outside


def shaped_logits(logits_MV: Tensor, sampling: SamplingParams, chosen_M: Tensor | None = None) -> Tensor:
    """Applies temperature, then top-k, then top-p (Holtzman et al. 2020), in the order of vLLM and transformers.

    Equal logits stay or go together (docs/adr/0005).

    Args:
        logits_MV: Logits, computed in fp32.
        sampling: What to apply; greedy scoring leaves the logits as they are.
        chosen_M: Tokens already drawn. They stay in the support even where rounding would put them just outside, so
            that scoring a drawn token never gives minus infinity.

    Returns:
        fp32 logits [M, V], minus infinity outside the support.
    """
    logits_MV = logits_MV.float()
    if sampling.greedy:
        return logits_MV
    if sampling.temperature != 1.0:
        logits_MV = logits_MV / sampling.temperature
    if sampling.full_support:
        return logits_MV
    floor_M = support_floor(logits_MV, top_k=sampling.top_k, top_p=sampling.top_p)
    outside = logits_MV < floor_M[:, None]
    if chosen_M is not None:
        outside = outside.scatter(-1, chosen_M[:, None], False)
    return logits_MV.masked_fill(outside, float("-inf"))


def token_logprobs(logits_MV: Tensor, token_M: Tensor, sampling: SamplingParams) -> Tensor:
    """log π(token) under the sampling distribution, nats, fp32 [M]; differentiable."""
    return -F.cross_entropy(shaped_logits(logits_MV, sampling, token_M), token_M, reduction="none")


def draw(logits_MV: Tensor, uniform_M: Tensor, sampling: SamplingParams) -> tuple[Tensor, Tensor]:
    """Draws one token per row by inverting the distribution function at a uniform number; the argmax where greedy.

    Args:
        logits_MV: Logits.
        uniform_M: Numbers in (0, 1), float64; the same number draws the same token in any batch.

    Returns:
        Tokens, int64 [M], and their log-probabilities under the sampling distribution, fp32 [M].
    """
    logprob_MV = shaped_logits(logits_MV, sampling).log_softmax(-1)
    if sampling.greedy:
        token_M = logprob_MV.argmax(-1)
    else:
        cumulative = logprob_MV.exp().cumsum(-1, dtype=torch.float64)
        token_M = torch.searchsorted(cumulative, (uniform_M * cumulative[:, -1])[:, None], right=True)[:, 0]
    return token_M, logprob_MV.gather(-1, token_M[:, None])[:, 0]
