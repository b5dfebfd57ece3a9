"""The loss of reward models; its mathematics is in `objectives.preference`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from lockstep.batch import Batch
from lockstep.losses.base import Denominator, Outputs, active_pairs, split_pairs
from lockstep.losses.preference import measure_implicit_rewards
from lockstep.metrics import Mean, Metrics
from lockstep.objectives.masks import trainable
from lockstep.objectives.preference import bradley_terry
from lockstep.types import Values


@dataclass(frozen=True)
class BradleyTerry:
    """Σ over pairs of −log σ(r_w − r_l − m) + c·(r_w + r_l)², of pairs in which both answers have trainable tokens.

    A pair is two neighboring sequences of a batch with `group_size` 2, the chosen one first. r is the head's output at
    the last token of a sequence.

    Attributes:
        margin: m is the difference of the pair's scores, which the per-sequence column `score` has; else 0.
        center_rewards_coefficient: c.
    """

    margin: bool = False
    center_rewards_coefficient: float = 0.0
    reads_values: ClassVar[Values] = "final"

    @property
    def denominator(self) -> Denominator:
        return "pairs"

    def __call__(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Metrics]:
        assert outputs.final_value is not None, "a reward model needs a head that gives values"
        active_P = active_pairs(batch)
        chosen_P, rejected_P = split_pairs(batch, outputs.final_value)
        margin_P = chosen_P.new_zeros(chosen_P.shape)
        if self.margin:
            better_P, worse_P = split_pairs(batch, batch["score"])
            # A pair that is not trained on may lack scores, and NaN must not reach the gradient of the others.
            margin_P = trainable(better_P - worse_P, active_P)
        loss_P = bradley_terry(chosen_P - rejected_P, margin_P)
        loss_P = loss_P + self.center_rewards_coefficient * (chosen_P + rejected_P).square()
        total = trainable(loss_P, active_P).sum()
        rewards = measure_implicit_rewards(chosen_P.detach(), rejected_P.detach(), active_P)
        return total, Metrics(loss=Mean(total.detach(), active_P.sum())) + rewards
