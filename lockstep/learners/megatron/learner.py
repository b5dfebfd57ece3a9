"""The Megatron learner: stages of a `GPTModel`, run by Megatron's pipeline schedules."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor

from lockstep.config import LearnerSection, Optimizer
from lockstep.core.batch import Batch
from lockstep.core.metrics import Metrics
from lockstep.distributed.buckets import all_reduce_sum
from lockstep.distributed.ranks import RankMesh
from lockstep.learners.megatron.model import PipelineStage
from lockstep.learners.megatron.pieces import MegatronPiece
from lockstep.learners.rank import MicroBatches, RankLearner
from lockstep.losses.base import Loss, Outputs
from lockstep.models.heads import canonical_name
from lockstep.models.laid_out import LaidOut


class MegatronLearner(RankLearner):
    """Implements `learners.base.Learner` for one rank; only the last pipeline stage has results.

    Args:
        stage: The stage, with weights, on its device.
        pieces: Pieces of its parameters.
        base: Prefix of the names of a backbone's tensors.
        section: Device, computation type, micro-batch size.
        optimizer: Settings of the optimizer; None for a scorer.
        ranks: Ranks that hold the model together.
    """

    def __init__(
        self,
        stage: PipelineStage,
        pieces: list[MegatronPiece],
        base: str,
        section: LearnerSection,
        optimizer: Optimizer | None,
        ranks: RankMesh,
    ) -> None:
        super().__init__(stage, pieces, section, optimizer, ranks)
        self._stage = stage
        self._own = pieces
        self._base = base
        boxes = itertools.chain.from_iterable(piece.boxes for piece in pieces)
        announced = [(canonical_name(box.name), box.whole) for box in boxes]
        self._announced = [announced] * ranks.size("pp")
        if ranks.size("pp") > 1:
            dist.all_gather_object(self._announced, announced, group=ranks.group("pp"))
        self._copy_embedding()

    def optim_step(self, lr: float | None = None) -> Metrics:
        metrics = super().optim_step(lr)
        self._copy_embedding()
        return metrics

    def load(self, folder: Path) -> None:
        super().load(folder)
        self._copy_embedding()

    def weights(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        """Yields weights by stage; a stage gathers each tensor, then sends it to other stages."""
        group = self._ranks.group("pp")
        here = self._ranks.index("pp")
        own = itertools.chain.from_iterable(self._gather_piece(piece, dtype) for piece in self._own)
        for stage, names in enumerate(self._announced):
            for name, shape in names:
                if stage == here:
                    tensor = next(own)[1].contiguous()
                else:
                    tensor = torch.empty(shape, dtype=dtype, device=self.device)
                if group is not None:
                    dist.broadcast(tensor, dist.get_global_rank(group, stage), group=group)
                yield name, tensor
        for name, buffer in self._stage.named_buffers():
            yield canonical_name(f"{self._base}{name}"), buffer

    def _lay_out(self, batch: Batch) -> LaidOut:
        return self._stage.lay_out(batch)

    def _accumulate_gradients(self, micros: MicroBatches, loss: Loss) -> list[Metrics]:
        def compute_loss(
            rows: list[int], batch: Any, outputs: Outputs
        ) -> tuple[Tensor, Tensor, Metrics]:
            total, metrics = self._compute_loss(loss, outputs, rows, batch)
            return total, torch.zeros((), dtype=torch.int), metrics

        return self._run_passes(micros, compute_loss, forward_only=False)

    def _compute_outputs(self, micros: MicroBatches) -> Iterator[Outputs]:
        def keep_outputs(
            rows: list[int], batch: Any, outputs: Outputs, non_loss_data: bool = True
        ) -> Outputs:
            return outputs

        return iter(self._run_passes(micros, keep_outputs, forward_only=True))

    def _run_passes(
        self, micros: MicroBatches, finish: Callable[..., Any], forward_only: bool
    ) -> list[Any]:
        """Runs the passes; on the last stage, returns `finish(rows, batch, outputs)` of each."""

        def forward_step(
            waiting: Iterator[Any], stage: PipelineStage
        ) -> tuple[Any, Callable[..., Any]]:
            rows, batch = next(waiting)
            with self._open_autocast():
                outputs = stage(batch)
            return outputs, lambda found, **options: finish(rows, batch, found, **options)

        if not len(micros):
            return []
        return get_forward_backward_func()(
            forward_step_func=forward_step,
            data_iterator=iter(micros),
            model=[self._stage],
            num_microbatches=len(micros),
            seq_length=1,  # unused: lengths are sent along (`variable_seq_lengths`)
            micro_batch_size=1,
            forward_only=forward_only,
            collect_non_loss_data=forward_only,
        )

    def _reduce_gradients(self) -> list[Tensor]:
        gradients = [piece.read_gradient() for piece in self._own]
        self._add_gradient_of_head(gradients)
        for name in ("dp", "cp"):
            all_reduce_sum(gradients, self._ranks.group(name))
        partial = [
            gradient for piece, gradient in zip(self._own, gradients, strict=True) if piece.partial
        ]
        all_reduce_sum(partial, self._ranks.group("tp"))
        return gradients

    def _forget_gradients(self) -> None:
        self._stage.zero_grad()

    def _add_gradient_of_head(self, gradients: list[Tensor]) -> None:
        """Adds the gradient of the last stage's embedding copy to the first stage's."""
        group = self._ranks.group("pp")
        stage = self._stage
        if group is None or not stage.tied:
            return
        share = torch.zeros(stage.own_rows, stage.config.hidden_size, device=self.device)
        if stage.gpt.post_process and stage.head_weight.grad is not None:
            share += stage.head_weight.grad[: stage.own_rows]
        dist.all_reduce(share, group=group)
        if stage.gpt.pre_process:
            gradients[0] += share

    def _copy_embedding(self) -> None:
        """Copies the first stage's embedding to the last stage's head, if tied."""
        group = self._ranks.group("pp")
        stage = self._stage
        if group is None or not stage.tied:
            return
        if stage.gpt.pre_process:
            table = self._own[0].local
        else:
            table = torch.empty(stage.own_rows, stage.config.hidden_size, device=self.device)
        dist.broadcast(table, dist.get_global_rank(group, 0), group=group)
        if stage.gpt.post_process:
            stage.head_weight.detach()[: stage.own_rows].copy_(table)
