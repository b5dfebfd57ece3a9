"""Bounds on what rounding may do to a log-probability, derived, one for each kind of result.

fp32 has a unit roundoff u = 2⁻²⁴. For a row of V logits, log p = (z − m) − log Σ exp(z − m), where
m is the largest. The subtraction rounds by u·|z − m|, at most the row's range R; `exp` passes that
on as a relative error and adds its own; a sum in pairs adds u·log2 V; the logarithm and the last
subtraction round once each. To first order log p is off by at most c·u with c = 2R + log2 V + 8.
All else follows: p is off by p·c·u, and gradients are sums of those. Where logits come from hidden
states of size H, their product in fp32 is off by 6·√H·u·Σ|h·w| (Higham and Mary 2019, a bound that
fails once in ten million), which counts twice; in bf16 a product is off by 2⁻⁸ of itself, too.
Results and gradients in bf16 round once more, by 2⁻⁸ of themselves. What is only moved or picked
may not change at all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

U = 2.0**-24
U_BF16 = 2.0**-8
SIGMAS = 6
"""λ of the probabilistic bound on a sum's rounding, λ·√n·u."""


@dataclass(frozen=True)
class Rows:
    """Whole rows of logits in float64, and how far fp32 may be off in each.

    Attributes:
        logits: [..., V].
        product: Bound on the error of a logit that is the product of hidden states and a head,
            [..., 1]; 0: none.
    """

    logits: Tensor
    product: Tensor | float = 0.0

    @property
    def error(self) -> Tensor:
        """Bound on the error of a log-probability [..., 1]."""
        finite = self.logits.masked_fill(self.logits.isneginf(), torch.inf)
        spread = self.logits.amax(-1, keepdim=True) - finite.amin(-1, keepdim=True)
        return (2 * spread + math.log2(self.logits.shape[-1]) + 8) * U + 2 * self.product

    def of_picked(self) -> Tensor:
        """Of log p of any tokens [..., 1]."""
        return self.error

    def of_softmax(self) -> Tensor:
        """Of p [..., V]."""
        return self.logits.softmax(-1) * self.error

    def of_picked_gradient(self, upstream: Tensor, ids: Tensor) -> Tensor:
        """Of Σ_k g_k·(δ − p) for upstream gradients g and token ids, both [..., K]."""
        size = upstream.abs()
        picked = torch.zeros_like(self.logits).scatter_add_(-1, ids, size)
        return self.error * (picked + self.logits.softmax(-1) * size.sum(-1, keepdim=True))

    def of_entropy(self) -> Tensor:
        """Of Σ p log p [...]."""
        return (self.error * (self._entropy() + 2))[..., 0]

    def of_entropy_gradient(self, upstream: Tensor) -> Tensor:
        """Of g·p·(log p − Σ p log p) [..., V] for upstream gradients [...]."""
        logprob = self.logits.log_softmax(-1)
        entropy = self._entropy()
        size = upstream.abs()[..., None]
        return (
            size
            * self.error
            * logprob.exp()
            * ((logprob + entropy).abs().nan_to_num(0.0, 0.0) + entropy + 4)
        )

    def _entropy(self) -> Tensor:
        logprob = self.logits.log_softmax(-1)
        return -(logprob.exp() * logprob.masked_fill(logprob.isneginf(), 0.0)).sum(-1, keepdim=True)


def of_products(states: Tensor, weight: Tensor) -> Tensor:
    """Bound on the error of a logit that is computed in fp32 from hidden states [M, H] and a head
    [V, H], [M, 1].
    """
    largest = (states.abs() @ weight.abs().t()).amax(-1, keepdim=True)
    return SIGMAS * math.sqrt(states.shape[-1]) * U * largest


def of_sum(left: Tensor, right: Tensor, error: Tensor) -> Tensor:
    """Bound on the error of left @ right in fp32, where left is off by up to `error` already."""
    rounding = SIGMAS * math.sqrt(left.shape[-1]) * U
    return (rounding * left.abs() + error) @ right.abs()
