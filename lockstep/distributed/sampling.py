"""The distribution that tokens are drawn from, computed the same way for drawing and for scoring.

A learner that scores under another distribution than the sampler drew from (temperature forgotten, top-p not
renormalised) sees importance ratios that are wrong by a factor, however equal the weights are.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from lockstep.types import SamplingParams


def shaped_logits(logits_MV: Tensor, sampling: SamplingParams, chosen_M: Tensor | None = None) -> Tensor:
    """Applies temperature, then top-k, then top-p (Holtzman et al. 2020), in the order of vLLM and transformers.

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
    outside = _outside(logits_MV.detach(), sampling)
    if chosen_M is not None:
        outside = outside.scatter(-1, chosen_M[:, None], False)
    return logits_MV.masked_fill(outside, float("-inf"))


def _outside(logits_MV: Tensor, sampling: SamplingParams) -> Tensor:
    """Tokens that top-k and top-p exclude, bool [M, V]; the likeliest token is always inside."""
    ordered, index = torch.sort(logits_MV, dim=-1, descending=True, stable=True)
    rank = torch.arange(logits_MV.shape[-1], device=logits_MV.device)
    cut = (rank >= sampling.top_k) if sampling.top_k else torch.zeros_like(rank, dtype=torch.bool)
    cut = cut.expand_as(ordered)
    if sampling.top_p < 1.0:
        probability = ordered.masked_fill(cut, float("-inf")).softmax(-1)
        cut = cut | (probability.cumsum(-1) - probability >= sampling.top_p)
    return torch.zeros_like(cut).scatter(-1, index, cut)


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
