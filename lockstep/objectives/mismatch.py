"""Mismatch between sampler and learner log-probabilities, and importance corrections for it.

Both score the sampled tokens, under the sampling distribution. See `masks` for the legend; Δ is the
learner's log-probability minus the sampler's, nats.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from lockstep.core.metrics import Max, Mean, MetricReduction, Metrics
from lockstep.objectives.divergence import k1, k3
from lockstep.objectives.masks import find_token_rows, sequence_sum, zero_outside_mask

DEPTHS = (0, 64, 256, 1024, 4096, 16384)
"""First position of each range of positions whose gap is measured separately."""


def token_tis(
    learner_logprob_N: Tensor, sampler_logprob_N: Tensor, mask_N: Tensor, high: float
) -> Tensor:
    """Truncated importance sampling per token, min(e^Δ, high) (Ionides 2008; Yao et al. 2025).

    Returns:
        Importance weights from the sampling policy to the trained one, detached, fp32 [N], 0 where
        the mask is off.
    """
    ratio_N = _compute_gap(learner_logprob_N, sampler_logprob_N, mask_N).exp()
    return zero_outside_mask(ratio_N.clamp(max=high), mask_N)


def sequence_tis(
    learner_logprob_N: Tensor,
    sampler_logprob_N: Tensor,
    mask_N: Tensor,
    lengths: Tensor,
    high: float,
) -> Tensor:
    """Truncated importance sampling per sequence: each of its tokens weighs min(e^ΣΔ, high).

    Returns the same as `token_tis`.
    """
    delta_N = _compute_gap(learner_logprob_N, sampler_logprob_N, mask_N)
    ratio_B = sequence_sum(delta_N, mask_N, lengths).exp()
    return zero_outside_mask(
        ratio_B.clamp(max=high)[find_token_rows(lengths, mask_N.device)], mask_N
    )


def icepop(
    learner_logprob_N: Tensor, sampler_logprob_N: Tensor, mask_N: Tensor, low: float, high: float
) -> Tensor:
    """Masked importance sampling per token: e^Δ if within [low, high], else 0.

    Zhao et al. 2025. Returns the same as `token_tis`.
    """
    ratio_N = _compute_gap(learner_logprob_N, sampler_logprob_N, mask_N).exp()
    return zero_outside_mask(ratio_N, mask_N & (ratio_N >= low) & (ratio_N <= high))


@dataclass(frozen=True)
class EffectiveSampleSize(MetricReduction):
    """Effective sample share (Σw)² / (n·Σw²) over sequences (Kish 1965); 1 for equal weights.

    Kept as logarithms, because the weight of a long sequence may not fit a float.

    Attributes:
        log_sum: log Σw, 0-d.
        log_sum_squares: log Σw², 0-d.
        count: n, sequences with a trainable token, 0-d.
    """

    log_sum: Tensor
    log_sum_squares: Tensor
    count: Tensor

    def merge(self, other: EffectiveSampleSize) -> EffectiveSampleSize:
        return EffectiveSampleSize(
            torch.logaddexp(self.log_sum, other.log_sum),
            torch.logaddexp(self.log_sum_squares, other.log_sum_squares),
            self.count + other.count,
        )

    def value(self) -> float:
        return float((2 * self.log_sum - self.log_sum_squares).exp() / self.count)


def sequence_mismatch(
    learner_logprob_N: Tensor,
    sampler_logprob_N: Tensor,
    mask_N: Tensor,
    lengths: Tensor,
    cap: float = math.inf,
) -> Tensor:
    """Mean of e^min(|Δ|, cap) over each sequence's trainable tokens.

    Returns:
        fp32 [B]; 1, no mismatch, for a sequence without trainable tokens.
    """
    error_N = _compute_gap(learner_logprob_N, sampler_logprob_N, mask_N).abs().clamp(max=cap).exp()
    count_B = sequence_sum(torch.ones_like(error_N), mask_N, lengths)
    return torch.where(count_B > 0, sequence_sum(error_N, mask_N, lengths) / count_B, 1.0)


def measure_agreement(
    learner_logprob_N: Tensor, sampler_logprob_N: Tensor, mask_N: Tensor, lengths: Tensor
) -> Metrics:
    """Measures how well sampler and learner agree on the log-probabilities of sampled tokens.

    Returns:
        `token_mult_prob_error`, the mean of e^|Δ| (NeMo RL's measure); `sampler_kl_k1` and
        `sampler_kl_k3`, estimates of KL(sampler ‖ learner), nats per token; `sequence_ess`, the
        effective share of sequences if each were weighted by its importance ratio;
        `max_abs_logprob_diff`, the largest |Δ|, nats; `gap_from_…`, see `gap_by_depth`.
    """
    delta_N = _compute_gap(learner_logprob_N, sampler_logprob_N, mask_N)
    zero_N = torch.zeros_like(delta_N)
    count = mask_N.sum()
    log_weight_B = sequence_sum(delta_N, mask_N, lengths)
    present_B = sequence_sum(torch.ones_like(delta_N), mask_N, lengths) > 0
    log_weight_B = log_weight_B.masked_fill(~present_B, float("-inf"))
    return Metrics(
        token_mult_prob_error=Mean(zero_outside_mask(delta_N.abs().exp(), mask_N).sum(), count),
        sampler_kl_k1=Mean(k1(zero_N, delta_N).sum(), count),
        sampler_kl_k3=Mean(k3(zero_N, delta_N).sum(), count),
        sequence_ess=EffectiveSampleSize(
            torch.logsumexp(log_weight_B, 0), torch.logsumexp(2 * log_weight_B, 0), present_B.sum()
        ),
        max_abs_logprob_diff=Max(delta_N.abs().max()),
        **gap_by_depth(delta_N, mask_N, lengths),
    )


def gap_by_depth(delta_N: Tensor, mask_N: Tensor, lengths: Tensor) -> dict[str, Mean]:
    """Measures the mean |Δ| of tokens by their position in the sequence, prompt included.

    Returns:
        `gap_from_<first position>` for each range of `DEPTHS` that has a trainable token, nats.
    """
    starts = lengths.cumsum(0) - lengths
    position_N = torch.arange(len(delta_N)) - starts[find_token_rows(lengths, lengths.device)]
    gaps = {}
    for low, high in pairwise((*DEPTHS, math.inf)):
        inside_N = mask_N & ((position_N >= low) & (position_N < high)).to(mask_N.device)
        if bool(inside_N.any()):
            gaps[f"gap_from_{low}"] = Mean(
                zero_outside_mask(delta_N.abs(), inside_N).sum(), inside_N.sum()
            )
    return gaps


def _compute_gap(learner_logprob_N: Tensor, sampler_logprob_N: Tensor, mask_N: Tensor) -> Tensor:
    """Δ, detached, 0 where the mask is off. Returns fp32 [N]."""
    return zero_outside_mask(
        learner_logprob_N.detach().float() - sampler_logprob_N.detach().float(), mask_N
    )
