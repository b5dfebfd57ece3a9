"""Estimates of the divergence between two policies, from log-probabilities of what one of them drew."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True)
class KLEstimate:
    """KL(π ‖ π_ref) per token, from tokens drawn from π (Schulman 2020, 'Approximating KL divergence').

    With Δ = log π(x) − log π_ref(x):  k1 = Δ,  k2 = Δ²/2,  k3 = e^(−Δ) − 1 + Δ.

    k1 and k3 are unbiased; k2 and k3 are never negative. As a term of a loss, their *gradients* are estimates of other
    things: k1's has mean 0, k2's is that of KL(π ‖ π_ref), k3's is that of KL(π_ref ‖ π).

    Attributes:
        estimator: Which of the three.
        clamp_logratio: Bound on |Δ| before the estimate, nats; None: none.
        clamp: Bound on the estimate's magnitude, nats; None: none.
    """

    estimator: Literal["k1", "k2", "k3"] = "k3"
    clamp_logratio: float | None = None
    clamp: float | None = None

    def __call__(self, logprob_N: Tensor, ref_logprob_N: Tensor) -> Tensor:
        """Returns [N], differentiable with respect to both; beyond a bound the gradient is 0."""
        delta_N = logprob_N - ref_logprob_N
        if self.clamp_logratio is not None:
            delta_N = delta_N.clamp(-self.clamp_logratio, self.clamp_logratio)
        if self.estimator == "k1":
            kl_N = delta_N
        elif self.estimator == "k2":
            kl_N = 0.5 * delta_N.square()
        else:
            kl_N = torch.expm1(-delta_N) + delta_N
        return kl_N if self.clamp is None else kl_N.clamp(-self.clamp, self.clamp)
