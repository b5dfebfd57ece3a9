"""Additions to a policy loss: the KL to the reference, and the comparison with the sampler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from torch import Tensor

from lockstep.core.batch import Batch
from lockstep.core.metrics import Mean, Metrics
from lockstep.core.types import KLEstimator
from lockstep.losses.base import (
    Denominator,
    Loss,
    Outputs,
    call_loss,
    find_denominator,
    reads_entropy,
)
from lockstep.losses.ppo import estimate_divergence
from lockstep.objectives.divergence import kl_loss
from lockstep.objectives.masks import zero_outside_mask
from lockstep.objectives.tally import MismatchTally


@dataclass(frozen=True)
class ExtendedLoss:
    """A loss that adds a term or metric to another loss, with the same inputs and denominator.

    Attributes:
        loss: The other loss.
    """

    loss: Loss

    @property
    def denominator(self) -> Denominator:
        return find_denominator(self.loss)

    @property
    def reads_entropy(self) -> bool:
        return reads_entropy(self.loss)


@dataclass(frozen=True)
class KLPenalizedLoss(ExtendedLoss):
    """A loss plus β·KL(π ‖ π_ref), averaged over trainable tokens by the loss's own denominator.

    With the denominator "tokens" the KL is a mean over tokens; otherwise it is a mean over
    responses of their token means.

    Attributes:
        coef: β.
        estimator: Formula of the KL.
    """

    coef: float
    estimator: KLEstimator = "k2"

    def __call__(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Metrics]:
        total, metrics = call_loss(self.loss, outputs, batch)
        assert outputs.logprob is not None, "a head of logits gives log-probabilities"
        logprob_N = zero_outside_mask(outputs.logprob, batch.mask)
        old_N = zero_outside_mask(batch["old_logprob"], batch.mask)
        ref_N = zero_outside_mask(batch["ref_logprob"], batch.mask)
        kl_N = kl_loss(logprob_N, old_N, ref_N, self.estimator)
        term_N = kl_N * zero_outside_mask(batch["weight"], batch.mask)
        match self.denominator:
            case "tokens":
                pass
            case "rows" | "pairs":
                term_N = term_N / batch.per_sample(batch.mask.float()).clamp(min=1)[batch.row]
            case _:
                assert_never(self.denominator)
        divergence_N = estimate_divergence(logprob_N.detach(), old_N, ref_N)
        measured = Metrics(kl=Mean(divergence_N.sum(), batch.mask.sum()))
        return total + self.coef * term_N.sum(), metrics + measured


@dataclass(frozen=True)
class ComparedLoss(ExtendedLoss):
    """A loss that also compares learner and sampler; valid only at the weights that sampled.

    It adds the metric `compared`, a `MismatchTally` against the column `sampler_logprob` over
    responses that are not `recomputed`.
    """

    def __call__(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Metrics]:
        total, metrics = call_loss(self.loss, outputs, batch)
        assert outputs.logprob is not None, "a head of logits gives log-probabilities"
        left_N = batch.mask & ~batch["recomputed"][batch.row]
        logprob_N = zero_outside_mask(outputs.logprob.detach(), batch.mask)
        tally = MismatchTally.from_logprobs(
            logprob_N, batch["sampler_logprob"], left_N, batch.lengths
        )
        return total, metrics + Metrics(compared=tally)
