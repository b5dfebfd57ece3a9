"""The cross-entropy loss of the trainable tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from lockstep.core.batch import Batch
from lockstep.core.metrics import Mean, Metrics
from lockstep.losses.base import Denominator, Outputs
from lockstep.objectives.masks import zero_outside_mask


@dataclass(frozen=True)
class CrossEntropyLoss:
    """−Σ_t log π(x_t | x_<t) over trainable tokens, nats."""

    reads_entropy: ClassVar = False

    @property
    def denominator(self) -> Denominator:
        return "tokens"

    def __call__(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Metrics]:
        assert outputs.logprob is not None, (
            "cross-entropy needs a head that gives log-probabilities"
        )
        total = -zero_outside_mask(outputs.logprob, batch.mask).sum()
        return total, Metrics(loss=Mean(total.detach(), batch.mask.sum()))
