"""The clipped surrogate of PPO (Schulman et al. 2017) with extensions, and CISPO's surrogate."""

from __future__ import annotations

import torch
from torch import Tensor

_MAX_LOGRATIO = 20.0  # nats: beyond, exp overflows in fp32 and a gradient of 0·∞ is NaN


def probability_ratio(logprob_N: Tensor, old_logprob_N: Tensor) -> Tensor:
    """π(x_t | x_<t) / π_old(x_t | x_<t) [N], with its logarithm bounded by ±20."""
    return (logprob_N - old_logprob_N).clamp(-_MAX_LOGRATIO, _MAX_LOGRATIO).exp()


def cispo_loss(
    logprob_N: Tensor, old_logprob_N: Tensor, advantage_N: Tensor, clip_high: float
) -> tuple[Tensor, Tensor]:
    """CISPO's loss −sg(min(ρ, 1 + high))·A·log π (MiniMax 2025, eq. 4): every token has a gradient.

    Arguments and results are those of `clip_surrogate`, but a token that is clipped here keeps a
    gradient, with the bound as its weight.
    """
    ratio_N = probability_ratio(logprob_N.detach(), old_logprob_N)
    return -ratio_N.clamp(max=1.0 + clip_high) * advantage_N * logprob_N, ratio_N > 1.0 + clip_high


def clip_surrogate(
    logprob_N: Tensor,
    old_logprob_N: Tensor,
    advantage_N: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
) -> tuple[Tensor, Tensor]:
    """PPO's loss −min(ρA, clip(ρ, 1 − low, 1 + high)·A), ρ = π/π_old (Schulman et al. 2017, eq. 7).

    Different bounds above and below are DAPO's clip-higher (Yu et al. 2025). Dual clip (Ye et al.
    2020, eq. 5) bounds the loss by −c·A if A < 0, because the minimum alone does not bound it as
    the ratio grows.

    Args:
        logprob_N: log π of the sampled tokens, nats, fp32 [N].
        old_logprob_N: log π_old of the same.
        advantage_N: A of each token.
        clip_low: ρ is clipped below at 1 − clip_low.
        clip_high: ρ is clipped above at 1 + clip_high.
        dual_clip: c > 1, or None: no bound.

    Returns:
        The loss of each token [N], and whether a bound is active, which makes its gradient 0, bool
        [N].
    """
    ratio_N = probability_ratio(logprob_N, old_logprob_N)
    plain_N = -advantage_N * ratio_N
    bounded_N = -advantage_N * ratio_N.clamp(1.0 - clip_low, 1.0 + clip_high)
    loss_N = torch.maximum(plain_N, bounded_N)
    clipped_N = bounded_N > plain_N
    if dual_clip is None:
        return loss_N, clipped_N
    ceiling_N = -advantage_N * dual_clip
    over_N = (advantage_N < 0) & (loss_N > ceiling_N)
    return torch.where(over_N, ceiling_N, loss_N), clipped_N | over_N
