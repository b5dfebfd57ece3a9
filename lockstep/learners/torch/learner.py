"""The torch learner: a `transformers` model with a head, whole in one process or cut by FSDP2 and DTensor."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from lockstep.distributed.ranks import ALONE, Ranks
from lockstep.learners.rank import MicroBatches, RankLearner, nothing
from lockstep.learners.torch.pieces import TorchPiece
from lockstep.losses.base import Loss, Outputs
from lockstep.metrics import Metrics
from lockstep.models.heads import canonical
from lockstep.recipe import LearnerSection, Optimizer


class TorchLearner(RankLearner):
    """Implements `learners.base.Learner` for one rank.

    Args:
        model: A head of `models.heads` on its backbone; maps a batch to outputs. fp32, on its device, and cut over the
            ranks where there are several.
        section: Device, computation type, micro-batch size.
        optimizer: Settings of AdamW; None for a model that is only scored with.
        ranks: Those that hold the model together.
    """

    def __init__(
        self,
        model: nn.Module,
        section: LearnerSection,
        optimizer: Optimizer | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        pieces = [TorchPiece.of(name, parameter) for name, parameter in model.named_parameters()]
        super().__init__(model, pieces, section, optimizer, ranks)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        for piece in self.pieces:
            yield from piece.gathered()
        for name, buffer in self.model.named_buffers():
            yield canonical(name), buffer

    def _learned(self, micros: MicroBatches, loss: Loss) -> list[Metrics]:
        parts: list[Metrics] = []
        for rows, micro in micros:
            with self._computation():
                outputs = self.model(micro)
            total, metrics = loss(outputs, micro) if rows else (nothing(outputs), Metrics())
            total.backward()
            parts.append(metrics)
        return parts

    def _outputs(self, micros: MicroBatches) -> Iterator[Outputs]:
        for _, micro in micros:
            with self._computation(), torch.no_grad():
                outputs = self.model(micro)
            yield outputs
        self._forget_gathered()

    def _forget_gradients(self) -> None:
        super()._forget_gradients()
        self._forget_gathered()

    def _forget_gathered(self) -> None:
        """Weights that were gathered for a pass are not those of after an update."""
        if isinstance(self.model, FSDPModule):
            self.model.reshard()
