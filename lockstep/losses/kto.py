"""The KTO loss; the math is in `objectives.kto`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from lockstep.core.batch import Batch
from lockstep.core.metrics import Mean, Metrics
from lockstep.losses.base import Denominator, Outputs, active_rows
from lockstep.objectives.kto import kto_loss
from lockstep.objectives.masks import zero_outside_mask


@dataclass(frozen=True)
class KTOLoss:
    """The KTO loss, summed over answers with trainable tokens; see `objectives.kto`.

    Reads the per-token column `ref_logprob` and the per-sequence column `desirable`. z0 is an
    attribute, because it is estimated over a whole batch and all micro-batches share it.

    Attributes:
        beta: β.
        weights: λ_D and λ_U, the weights of desirable and undesirable answers.
        point: z0, nats.
    """

    beta: float = 0.1
    weights: tuple[float, float] = (1.0, 1.0)
    point: float = 0.0
    reads_entropy: ClassVar = False

    @property
    def denominator(self) -> Denominator:
        return "rows"

    def __call__(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Metrics]:
        assert outputs.logprob is not None, "KTO needs a head that gives log-probabilities"
        mask_N = batch.mask
        active_B = active_rows(batch)
        desirable_B = batch["desirable"]
        ratio_B = batch.per_sample(
            zero_outside_mask(outputs.logprob - batch["ref_logprob"], mask_N)
        )  # r
        loss_B = kto_loss(ratio_B, desirable_B, self.beta, self.point, self.weights)
        total = zero_outside_mask(loss_B, active_B).sum()
        count = active_B.sum()
        metrics = Metrics(
            loss=Mean(total.detach(), count), reference_point=Mean(self.point * count, count)
        )
        length_B = batch.per_sample(mask_N.long()).float()
        for name, chosen_B in {
            "desirable": active_B & desirable_B,
            "undesirable": active_B & ~desirable_B,
        }.items():
            for column, value_B in {
                "rewards": self.beta * ratio_B.detach(),
                "lengths": length_B,
            }.items():
                metrics[f"{column}_{name}"] = Mean(
                    zero_outside_mask(value_B, chosen_B).sum(), chosen_B.sum()
                )
        return total, metrics
