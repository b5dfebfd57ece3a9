"""Estimates of the KL divergence between two policies from tokens that one of them sampled.

With Δ = log π(x) − log π_ref(x) of a token x ~ π (Schulman 2020, 'Approximating KL divergence'):

    k1 = Δ,    k2 = Δ²/2,    k3 = e^(−Δ) − 1 + Δ

k1 and k3 are unbiased estimates of KL(π ‖ π_ref); k2 and k3 are never negative. Training depends on
the expected *gradient*, which depends on where the estimate is used:

- In the reward, the gradient is E[k·∇log π]: k1 gives ∇KL(π ‖ π_ref); k2 and k3 do not, and may
  even point away from the reference. So the reward takes `k1`.
- In the loss, the estimate itself is differentiated: k1's gradient has mean 0, k3's is the gradient
  of KL(π_ref ‖ π), and k2's is right if π itself sampled. So by default the loss takes k2 weighted
  by π/π_old; k3 is GRPO's published formula, see `kl_loss`.

`tests/conformance/test_kl_gradients.py` enumerates a small vocabulary and compares with autograd.
Training never clamps Δ, because that would bias the gradient.
"""

from __future__ import annotations

from typing import assert_never

import torch
from torch import Tensor

from lockstep.core.types import KLEstimator
from lockstep.objectives.policy import probability_ratio


def k1(logprob_N: Tensor, ref_logprob_N: Tensor) -> Tensor:
    """Estimates KL(π ‖ π_ref) by Δ. Returns [N], nats."""
    return logprob_N - ref_logprob_N


def k2(logprob_N: Tensor, ref_logprob_N: Tensor) -> Tensor:
    """Estimates KL(π ‖ π_ref) by Δ²/2, with a bias of third order in Δ.

    Returns [N], nats, none negative.
    """
    return 0.5 * (logprob_N - ref_logprob_N).square()


def k3(logprob_N: Tensor, ref_logprob_N: Tensor) -> Tensor:
    """Estimates KL(π ‖ π_ref) by e^(−Δ) − 1 + Δ.

    Returns [N], nats, none negative; infinite if Δ < −88 in fp32.
    """
    delta_N = logprob_N - ref_logprob_N
    return torch.expm1(-delta_N) + delta_N


def kl_loss(
    logprob_N: Tensor,
    old_logprob_N: Tensor,
    ref_logprob_N: Tensor,
    estimator: KLEstimator = "k2",
) -> Tensor:
    """The KL term of a loss, by default with the gradient of KL(π ‖ π_ref) at the sampled states.

    `k2` is sg(ρ)·Δ²/2 with ρ = π/π_old, which is 1 on-policy. Its gradient is ρ·Δ·∇log π: token by
    token that of ρ·k3 (DeepSeek-AI 2025, DeepSeek-V3.2), without the exponential of a log-ratio
    that must cancel. `k3` is GRPO's formula (Shao et al. 2024, eq. 4): it estimates KL(π ‖ π_ref),
    but its expected gradient is that of KL(π_ref ‖ π).

    Args:
        logprob_N: log π of the sampled tokens, nats, fp32 [N].
        old_logprob_N: log π_old of the same; π_old sampled them.
        ref_logprob_N: log π_ref of the same.
        estimator: The formula.

    Returns:
        [N], differentiable with respect to log π alone. The value of `k2` does not estimate the
        divergence if ρ ≠ 1.
    """
    match estimator:
        case "k2":
            ratio_N = probability_ratio(logprob_N.detach(), old_logprob_N)
            return ratio_N * k2(logprob_N, ref_logprob_N)
        case "k3":
            return k3(logprob_N, ref_logprob_N)
        case _:
            assert_never(estimator)
