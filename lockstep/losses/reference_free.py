"""Losses over pairs of answers that need no reference policy; their mathematics is in `objectives.preference`.

A pair is two neighboring sequences of a batch with `group_size` 2, the chosen one first; both losses read the mean
log-probability of an answer's tokens, the stop token included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from lockstep.batch import Batch
from lockstep.losses.base import Denominator, Outputs, active_pairs, split_pairs
from lockstep.losses.preference import measure_pairs
from lockstep.metrics import Mean, Metrics
from lockstep.objectives.masks import trainable
from lockstep.objectives.preference import odds_ratio, simpo


@dataclass(frozen=True)
class SimPOLoss:
    """Σ over pairs of −log σ(β·Δ − γ) − w_s·log π(y_w), Δ and log π(y_w) of means over an answer's tokens.

    Attributes:
        beta: β.
        margin: γ.
        sft_coef: w_s; 0 in the paper.
    """

    beta: float = 2.0
    margin: float = 1.0
    sft_coef: float = 0.0
    reads_entropy: ClassVar = False

    @property
    def denominator(self) -> Denominator:
        return "pairs"

    def __call__(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Metrics]:
        chosen_P, rejected_P = _means_of_pairs(outputs, batch)
        loss_P = simpo(chosen_P - rejected_P, self.beta, self.margin)
        return _sum_up(batch, loss_P, -chosen_P, (1.0, self.sft_coef), (self.beta * chosen_P, self.beta * rejected_P))


@dataclass(frozen=True)
class ORPOLoss:
    """Σ over pairs of −log π(y_w) − λ·log σ(log odds(y_w) − log odds(y_l)), of means over an answer's tokens.

    Attributes:
        odds_ratio_coef: λ.
    """

    odds_ratio_coef: float = 0.1
    reads_entropy: ClassVar = False

    @property
    def denominator(self) -> Denominator:
        return "pairs"

    def __call__(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Metrics]:
        chosen_P, rejected_P = _means_of_pairs(outputs, batch)
        coefs, rewards = (self.odds_ratio_coef, 1.0), (chosen_P, rejected_P)
        return _sum_up(batch, odds_ratio(chosen_P, rejected_P), -chosen_P, coefs, rewards)


def _means_of_pairs(outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
    """Mean log-probability of the tokens of the chosen and of the rejected answers, [P] each."""
    assert outputs.logprob is not None, "a loss of pairs needs a head that gives log-probabilities"
    length_B = batch.per_sample(batch.mask.long()).clamp(min=1)
    return split_pairs(batch, batch.per_sample(trainable(outputs.logprob, batch.mask)) / length_B)


def _sum_up(
    batch: Batch, preference_P: Tensor, surprise_P: Tensor, coefs: tuple[float, float], rewards: tuple[Tensor, Tensor]
) -> tuple[Tensor, Metrics]:
    """Sums a pair loss and the negative log-likelihood of chosen answers, weighted, over active pairs; adds metrics."""
    active_P = active_pairs(batch)
    sums = [trainable(loss_P, active_P).sum() for loss_P in (preference_P, surprise_P)]
    total, count = coefs[0] * sums[0] + coefs[1] * sums[1], active_P.sum()
    named = {"preference_loss": sums[0], "sft_loss": sums[1], "loss": total}
    metrics = Metrics({name: Mean(one.detach(), count) for name, one in named.items()})
    chosen_P, rejected_P = rewards
    return total, metrics + measure_pairs(batch, (chosen_P.detach(), rejected_P.detach()), active_P)
