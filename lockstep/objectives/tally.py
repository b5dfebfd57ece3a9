"""Mean disagreement of sampler and learner with its standard error, as mergeable sums.

Let e = e^min(|Δ|, 3) − 1 for a sampled token, n_b the number of tokens of response b, and E_b the
sum of their e. The mean error is m = Σ E_b / Σ n_b. Tokens of one response share prompt and prefix,
so responses are the independent units: the standard error of m is that of a ratio of sums (Cochran
1977, 'Sampling Techniques', §6),

    s² = B/(B − 1) · Σ_b (E_b − m·n_b)² / (Σ n_b)²

and a bound is broken if m − 3·s exceeds it. Without the cap, a single token that is off by 8 nats,
which happens occasionally in bf16, would add 0.3 to the mean of 10,000 tokens; with it, at most
0.002. Outliers raise m and s together, so a few in a few responses do not break the bound; an error
in every token has a small s and breaks it immediately. A single response has no s and decides
nothing; a step that decides nothing counts in the sum over the run. A log-probability that is not
finite breaks every bound, because both sides must give every sampled token a finite one.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass, replace
from operator import add

import torch
from torch import Tensor

from lockstep.core.metrics import MetricReduction
from lockstep.objectives.masks import sequence_sum, zero_outside_mask

CAP = 3.0
"""Cap on a token's |Δ|, nats."""
_STANDARD_ERRORS = 3.0
_LARGEST = torch.finfo(torch.float64).max


@dataclass(frozen=True)
class MismatchTally(MetricReduction):
    """Sums over responses that merge by addition.

    Attributes:
        responses: B, the number of responses with a token to compare.
        tokens: Σ n.
        error: Σ E.
        tokens_squared: Σ n².
        error_squared: Σ E².
        product: Σ E·n.
        unknown: Tokens whose Δ is not finite; they count in `tokens`, and as the cap in the errors.
        mismatches: Tokens whose two log-probabilities are not bit-identical.
        largest: Largest |Δ| of a token, nats; the largest fp64 number if one is not finite.
    """

    responses: int = 0
    tokens: float = 0.0
    error: float = 0.0
    tokens_squared: float = 0.0
    error_squared: float = 0.0
    product: float = 0.0
    unknown: int = 0
    mismatches: int = 0
    largest: float = 0.0

    @classmethod
    def from_logprobs(
        cls, learner_logprob_N: Tensor, sampler_logprob_N: Tensor, mask_N: Tensor, lengths: Tensor
    ) -> MismatchTally:
        """Tallies both sides' log-probabilities of the same tokens, nats [N]."""
        delta_N = zero_outside_mask(learner_logprob_N.double() - sampler_logprob_N.double(), mask_N)
        finite_N = delta_N.isfinite()
        size_N = delta_N.abs().masked_fill(~finite_N, CAP).clamp(max=CAP)
        tokens_B = sequence_sum(torch.ones_like(size_N), mask_N, lengths).double()
        error_B = sequence_sum(size_N.expm1(), mask_N, lengths).double()
        return cls(
            responses=int((tokens_B > 0).sum()),
            tokens=float(tokens_B.sum()),
            error=float(error_B.sum()),
            tokens_squared=float(tokens_B.square().sum()),
            error_squared=float(error_B.square().sum()),
            product=float((error_B * tokens_B).sum()),
            unknown=int((~finite_N).sum()),
            mismatches=int((delta_N != 0).sum()),
            largest=float(delta_N.abs().nan_to_num(_LARGEST).max()) if len(delta_N) else 0.0,
        )

    def merge(self, other: MismatchTally) -> MismatchTally:
        return self + other

    def value(self) -> float:
        return self.mean

    def __add__(self, other: MismatchTally) -> MismatchTally:
        sums = MismatchTally(*map(add, astuple(self), astuple(other)))
        return replace(sums, largest=max(self.largest, other.largest))

    @property
    def mean(self) -> float:
        """1 + m, the mean of e^min(|Δ|, 3); 1 if there are no tokens."""
        if self.tokens:
            return 1.0 + self.error / self.tokens
        return 1.0

    @property
    def standard_error(self) -> float:
        """The standard error s; infinite for fewer than two responses."""
        if self.responses < 2:
            return math.inf
        m = self.error / self.tokens
        squares = self.error_squared - 2.0 * m * self.product + m * m * self.tokens_squared
        return math.sqrt(max(squares, 0.0) * self.responses / (self.responses - 1)) / self.tokens

    def exceeds_bound(self, bound: float) -> bool:
        """True if the mean exceeds `bound` by more than 3 standard errors, or a Δ is not finite."""
        return self.unknown > 0 or self.mean - _STANDARD_ERRORS * self.standard_error > bound
