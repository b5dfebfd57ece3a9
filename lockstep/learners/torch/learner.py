"""The torch learner: a `transformers` model with a head; FSDP2 and DTensor shard it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from lockstep.config import LearnerSection, Optimizer
from lockstep.core.batch import Batch
from lockstep.core.metrics import Metrics
from lockstep.distributed.buckets import all_reduce_sum
from lockstep.distributed.ranks import ALONE, RankMesh
from lockstep.learners.rank import MicroBatches, RankLearner
from lockstep.learners.summing import GradientSum, add_each, add_over_ranks, order_blocks
from lockstep.learners.torch.pieces import TorchPiece
from lockstep.losses.base import Loss, Outputs
from lockstep.models.heads import LogitsHead, ValueHead, canonical_name
from lockstep.models.laid_out import LaidOut
from lockstep.models.lora import build_merges, is_adapter, is_trained
from lockstep.models.parallelize import abandon_pass, take_whole_gradients


class TorchLearner(RankLearner):
    """Implements `learners.base.Learner` for one rank.

    Args:
        model: A head of `models.heads` on its backbone; maps a batch to outputs. fp32, on its
            device, and sharded if there are several ranks.
        section: Device, computation type, micro-batch size.
        optimizer: Settings of the optimizer; None for a scorer.
        ranks: Ranks that hold the model together.
    """

    def __init__(
        self,
        model: LogitsHead | ValueHead,
        section: LearnerSection,
        optimizer: Optimizer | None = None,
        ranks: RankMesh = ALONE,
    ) -> None:
        self._head = model
        self._merges = section.lora is not None and section.adapters_apart is None
        adapted = build_merges(model) if self._merges else {}
        self._held = [
            TorchPiece.from_parameter(name, held, adapted.get(name))
            for name, held in model.named_parameters()
        ]
        self._learned = [
            piece for piece in self._held if section.lora is None or is_trained(piece.name)
        ]
        self._summed: list[Tensor] | None = None
        super().__init__(model, self._learned, section, optimizer, ranks)
        for piece in set(self._held) - set(self._learned):
            piece.parameter.requires_grad_(False)

    def weights(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        """Yields weights, see `SendsWeights`; merges adapters into copies, or yields only them."""
        adapters = [piece.local for piece in self._held if self._merges and is_adapter(piece.name)]
        with self._host.lend_tensors(adapters):
            for piece in self._held:
                if not (self._merges and is_adapter(piece.name)):
                    yield from self._gather_piece(piece, dtype)
        for name, buffer in self.model.named_buffers():
            yield canonical_name(name), buffer

    def load(self, folder: Path) -> None:
        abandon_pass(self.model)
        super().load(folder)

    def _list_constants(self) -> dict[str, Tensor]:
        if self.section.lora is not None:  # a checkpoint of adapters has nothing else
            return {}
        kept = self.model.state_dict().keys()
        found: dict[str, Tensor] = {}
        for name, buffer in self.model.named_buffers():
            if name in kept:
                found[canonical_name(name)] = buffer
        return found

    def _lay_out(self, batch: Batch) -> LaidOut:
        return self._head.lay_out(batch, self.section.share_prefixes)

    def _accumulate_gradients(self, micros: MicroBatches, loss: Loss) -> list[Metrics]:
        if self.section.rows_per_pass is not None:
            return self._sum_in_order(micros, loss)
        parts: list[Metrics] = []
        for number, (rows, micro) in enumerate(micros, 1):
            self._begin_pass(last=number == len(micros))
            parts.append(self._run_pass(rows, micro, loss))
        return parts

    def _run_pass(self, rows: Sequence[int], micro: LaidOut, loss: Loss) -> Metrics:
        with self._open_autocast():
            outputs = self.model(micro)
        total, metrics = self._compute_loss(loss, outputs, rows, micro)
        total.backward(torch.full_like(total, self._loss_factor))
        return metrics

    def _sum_in_order(self, micros: MicroBatches, loss: Loss) -> list[Metrics]:
        """Sums the gradients of passes as in `learners.summing`; empty passes come last."""
        count = sum(map(bool, micros.rows))
        steps = list(order_blocks(count)) if count else []
        order = [micros.rows[block] for block, _ in steps] + micros.rows[count:]
        parts: list[Metrics] = []
        total = GradientSum()
        for number, (rows, micro) in enumerate(replace(micros, rows=order)):
            self._begin_pass(last=False)
            parts.append(self._run_pass(rows, micro, loss))
            gradients = take_whole_gradients(
                self.model, [piece.parameter for piece in self._learned]
            )
            if rows:
                total.add_block(gradients, steps[number][1])
        group = self._ranks.joint_group("dp_replicate", "dp")
        shards = self._ranks.size("dp")
        gradients = add_over_ranks(self._learned, total.take_total(), group, shards)
        if self._summed is None:
            self._summed = gradients
        else:
            add_each(self._summed, gradients)
        return parts

    def _begin_pass(self, last: bool) -> None:
        """Makes FSDP reduce gradients only in the last pass, or in every pass.

        Parameters outside layers stay gathered until then.
        """
        if isinstance(self.model, FSDPModule):
            self.model.set_requires_gradient_sync(last or self.section.sync_every_pass)
            self.model.set_reshard_after_backward(last, recurse=False)

    def _reduce_gradients(self) -> list[Tensor]:
        if self._summed is not None:
            return self._summed
        gradients = super()._reduce_gradients()
        if isinstance(self.model, FSDPModule):
            pairs = zip(self._learned, gradients, strict=True)
            whole = [gradient for piece, gradient in pairs if not piece.is_cut_by_fsdp]
            all_reduce_sum(whole, self._ranks.joint_group("dp_replicate", "dp", "cp"))
        return gradients

    def _compute_outputs(self, micros: MicroBatches) -> Iterator[Outputs]:
        for _, micro in micros:
            with self._open_autocast(), torch.no_grad():
                outputs = self.model(micro)
            yield outputs
        self._forget_gathered()

    def _forget_gradients(self) -> None:
        self._summed = None
        super()._forget_gradients()
        self._forget_gathered()

    def _forget_gathered(self) -> None:
        """Frees weights that were gathered for a pass, since an update changes them."""
        if isinstance(self.model, FSDPModule):
            self.model.reshard()
