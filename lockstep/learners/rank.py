"""The base of all backends' learners on one rank: packing, gradient sums, updates, checkpoints.

Ranks hold pieces of the parameters. All make the same number of passes, since a pass may contain
collectives; the driver that sends the rows decides which rank reads which.
"""

from __future__ import annotations

import json
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path

import torch
from torch import Tensor, nn

from lockstep.config import LearnerSection, Optimizer
from lockstep.core.batch import Batch
from lockstep.core.borders import require_finite
from lockstep.core.errors import InputError
from lockstep.core.metrics import LastValue, Mean, Metrics, Sum, merge_metrics
from lockstep.distributed.buckets import all_reduce_sum
from lockstep.distributed.ranks import DIMENSIONS, RankMesh
from lockstep.learners.boxes import BoxReader, FileContents, find_written, name_file
from lockstep.learners.host_memory import HostMemory
from lockstep.learners.loss_scale import LossScale
from lockstep.learners.optimizer import TorchOptimizer, learning_rate
from lockstep.learners.packing import cut_in_order, find_families, list_groups, pack_families
from lockstep.learners.pieces import ParameterPiece, compute_norm, find_local
from lockstep.learners.saving import COUNTERS, StateWriter
from lockstep.learners.sending import SendsWeights
from lockstep.learners.summing import compute_ordered_norm
from lockstep.losses.base import (
    Loss,
    Outputs,
    call_loss,
    count_active,
    find_denominator,
    reads_entropy,
    reads_values,
    require_inputs,
)
from lockstep.models.device import empty_cache, resolve_device
from lockstep.models.laid_out import LaidOut
from lockstep.models.precision import OVERFLOW, open_autocast

RowPasses = Sequence[Sequence[int]] | None
"""Groups of sequences for each pass.

A group is empty if the rank only joins other ranks' pass; None: cut on this rank, by
`rows_per_pass` or the token budget.
"""

_NOTHING = torch.zeros(0)
_IDLE = Batch(
    torch.zeros(2, dtype=torch.int64), torch.tensor([2]), {"mask": torch.zeros(2, dtype=torch.bool)}
)


@dataclass(frozen=True)
class MicroBatches:
    """Passes over a batch; iteration lays out each pass's rows and moves them to the device."""

    batch: Batch
    rows: list[list[int]]
    lay_out: Callable[[Batch], LaidOut]
    device: torch.device

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[tuple[list[int], LaidOut]]:
        for rows in self.rows:
            yield rows, self.lay_out(self.batch.select(rows) if rows else _IDLE).to(self.device)


class RankLearner(SendsWeights):
    """Implements `learners.base.Learner` for one rank, except the passes themselves.

    Args:
        model: Model in fp32, on its device.
        pieces: Pieces that this rank updates and writes.
        section: Device, computation type, micro-batch size.
        optimizer: Settings of the optimizer; None for a scorer.
        ranks: Ranks that hold the model together.
    """

    def __init__(
        self,
        model: nn.Module,
        pieces: Iterable[ParameterPiece],
        section: LearnerSection,
        optimizer: Optimizer | None,
        ranks: RankMesh,
    ) -> None:
        self.device = resolve_device(section.device)
        # Always in evaluation mode: dropout would make the trained policy differ from the sampled
        # one.
        self.model = model.eval().requires_grad_(optimizer is not None)
        self.pieces = tuple(pieces)
        self.section = section
        self._settings = optimizer
        self._ranks = ranks
        if optimizer is None:
            self._optimizer = None
        else:
            self._optimizer = TorchOptimizer(self.pieces, optimizer)
        self._scale = LossScale() if section.needs_loss_scale else None
        self._weights = list(map(find_local, model.parameters()))
        self._host = HostMemory(self.device)
        self._count, self._loss = torch.zeros(()), torch.zeros(())
        self._has_gathered = False
        # of the newest trained batch: lengths of its sequences; rows and outputs of its passes
        self._trained: tuple[Tensor, list[int], list[Tensor]] | None = None
        self._updates = 0
        self._writer = StateWriter(ranks)

    def logprobs(self, batch: Batch, passes: RowPasses = None) -> Tensor:
        return self._score_columns(
            replace(batch, entropy=False), passes, lambda outputs: outputs.logprob
        )[0]

    def topk(self, batch: Batch, k: int, passes: RowPasses = None) -> tuple[Tensor, Tensor]:
        columns = (lambda outputs: outputs.top_token, lambda outputs: outputs.top_logprob)
        token, logprob = self._score_columns(
            replace(batch, sampling=None, top_k=k), passes, *columns
        )
        return token.long(), logprob

    def values(self, batch: Batch, passes: RowPasses = None) -> tuple[Tensor, Tensor]:
        columns = (lambda outputs: outputs.value, lambda outputs: outputs.final_value)
        value, final_value = self._score_columns(batch, passes, *columns)
        return value, final_value

    def forward_backward(self, batch: Batch, loss: Loss, passes: RowPasses = None) -> Metrics:
        require_inputs(batch, loss)
        count = count_active(batch, find_denominator(loss))
        if self._scale is not None and not self._has_gathered:
            self._scale.set_factor(self._sum_count(self._count + count))
        self._count += count
        self._has_gathered = True
        self._trained = batch.lengths, [], []
        batch = replace(batch, entropy=reads_entropy(loss), values=reads_values(loss))
        return merge_metrics(self._accumulate_gradients(self._micro_batches(batch, passes), loss))

    def last_logprobs(self) -> Tensor:
        if self._trained is None:
            raise InputError("last_logprobs: call forward_backward(batch, loss) of a policy first")
        return join_passes(*self._trained)

    def optim_step(self, lr: float | None = None) -> Metrics:
        assert self._optimizer is not None, "this learner has no optimizer"
        assert self._settings is not None, "an optimizer comes with its settings"
        if lr is not None and not 0 <= lr < math.inf:
            raise InputError(f"optim_step: lr is {lr}; use a finite number of at least 0")
        if not self._has_gathered:
            raise InputError(
                "optim_step: no gradient since the last step; call forward_backward(batch, loss) "
                "first"
            )
        self._has_gathered = False
        self._host.reload_tensors()
        count = self._sum_count(self._count)
        if lr is None:
            lr = learning_rate(self._settings, self._updates)
        loss = self._loss
        self._loss = torch.zeros(())
        self._count.zero_()
        gradients = self._reduce_gradients()
        self._forget_gradients()
        if count == 0:
            return Metrics(updates_skipped=Sum(1.0))
        for gradient in gradients:
            gradient.div_(count * self._loss_factor)
        length = self._compute_norm(gradients)
        if not torch.isfinite(length):
            loss = loss.cpu()
            # another rank's may be NaN
            all_reduce_sum([loss], self._ranks.joint_group(*DIMENSIONS))
            if self._scale is not None and torch.isfinite(loss):
                return self._scale.halve_after_overflow()
            cure = OVERFLOW
            if self._scale is None:
                cure = "lower the learning rate, or check the loss and its weights and columns"
            raise FloatingPointError(
                f"the gradient's norm is {float(length)} at update {self._updates}, at loss "
                f"{float(loss)}; {cure}"
            )
        self._optimizer.step(gradients, length, lr)
        self._updates += 1
        scaled = Metrics() if self._scale is None else self._scale.count_update()
        return scaled + Metrics(grad_norm=Mean(length), lr=LastValue(lr))

    def _compute_norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """L2 norm of the gradients of all ranks' pieces; each counts once."""
        written = [self._is_writer_of(piece) for piece in self.pieces]
        group = self._ranks.joint_group(*DIMENSIONS)
        if self.section.rows_per_pass is not None:
            return compute_ordered_norm(self.pieces, gradients, written, group)
        own = list(compress(gradients, written))
        return compute_norm(own, gradients[0].device, group)

    @property
    def _loss_factor(self) -> float:
        """The factor of losses in the backward pass."""
        if self._scale is None:
            return 1.0
        return self._scale.factor

    def _sum_count(self, count: Tensor) -> float:
        """Sums a loss's denominator over data-parallel ranks, in place."""
        all_reduce_sum([count], self._ranks.joint_group("dp_replicate", "dp"))
        return float(count)

    def _compute_loss(
        self, loss: Loss, outputs: Outputs, rows: Sequence[int], micro: Batch
    ) -> tuple[Tensor, Metrics]:
        """The summed loss of a pass, and its metrics; 0 and no metrics if the pass has no rows."""
        total, metrics = (
            call_loss(loss, outputs, micro) if rows else (build_zero_loss(outputs), Metrics())
        )
        self._loss = self._loss + total.detach()
        if outputs.logprob is None:
            self._trained = None
        elif rows and self._trained is not None:
            _, order, passes = self._trained
            order.extend(rows)
            passes.append(outputs.logprob.detach())
        return total, metrics

    def reset_optimizer(self) -> None:
        assert self._optimizer is not None, "this learner has no optimizer"
        self._host.reload_and_reset()
        self._optimizer.reset_state()

    def count_updates(self) -> int:
        """Number of optimizer steps that changed the weights."""
        return self._updates

    def plan_updates(self, updates: int) -> None:
        assert self._settings is not None, "this learner has no optimizer"
        self._settings = self._settings.fit_to_run(updates)

    def offload(self, keep_weights: bool = False) -> None:
        """Offloads weights and moments to host memory.

        They return when a method needs them on the device.

        Args:
            keep_weights: A sampler shares these weights, so they stay or return, and only moments
            are offloaded.
        """
        self._trained = None
        moments = [] if self._optimizer is None else self._optimizer.list_tensors()
        leaving = moments if keep_weights else [*self._weights, *moments]
        self._host.offload_tensors(leaving, frozen=self._optimizer is None)
        if keep_weights:
            self._host.reload_tensors(self._weights)

    def empty_cache(self) -> None:
        """Releases unused device memory, so that other processes can use it."""
        empty_cache(self.device)

    @property
    def sender(self) -> None:
        """None: this learner's weights are in this process."""

    def has_file(self, file: Path) -> bool:
        """True if this process's machine has the driver's file."""
        return file.is_file()

    def save(self, folder: Path) -> None:
        self._host.reload_tensors()
        own = [piece for piece in self.pieces if self._is_writer_of(piece)]
        files: dict[str, FileContents] = {}
        if own:
            boxes = (
                (box.name, box.read_box(piece.local), box) for piece in own for box in piece.boxes
            )
            constants = self._list_constants() if self._ranks.rank_number == 0 else {}
            files[name_file("model", self._ranks)] = FileContents.from_boxes(boxes).with_tensors(
                constants
            )
        if own and self._optimizer is not None:
            files[name_file("optimizer", self._ranks)] = FileContents.from_boxes(
                self._optimizer.list_moments(own)
            )
        counters = {
            "updates": self._updates,
            **({} if self._scale is None else self._scale.read_counters()),
        }
        self._writer.begin_save(folder, files, counters if self._ranks.rank_number == 0 else None)

    def poll_save(self, wait: bool) -> bool:
        return self._writer.poll_writing(wait)

    def load(self, folder: Path) -> None:
        self._host.reload_and_reset()
        self._forget_gradients()
        with BoxReader(find_written(folder, "model")) as saved:
            for piece in self.pieces:
                saved.fill_piece(piece.local, piece)
        if self._optimizer is not None:
            with BoxReader(find_written(folder, "optimizer")) as saved:
                self._optimizer.restore_moments(saved)
        self._count.zero_()
        self._loss = torch.zeros(())
        self._trained = None
        self._has_gathered = False
        counters = json.loads((folder / COUNTERS).read_text(encoding="utf-8"))
        self._updates = int(counters["updates"])
        if self._scale is not None:
            self._scale.restore_counters(counters)

    @abstractmethod
    def _lay_out(self, batch: Batch) -> LaidOut:
        """Computes the positions and the attention layout of a pass's tokens for the model."""

    @abstractmethod
    def _accumulate_gradients(self, micros: MicroBatches, loss: Loss) -> list[Metrics]:
        """Runs forward and backward of each pass; returns metrics. A pass without rows adds 0."""

    @abstractmethod
    def _compute_outputs(self, micros: MicroBatches) -> Iterator[Outputs]:
        """Yields outputs of each pass, without gradients; none if another rank has them."""

    def _gather_piece(
        self, piece: ParameterPiece, dtype: torch.dtype | None
    ) -> Iterator[tuple[str, Tensor]]:
        """Yields `ParameterPiece.gather_tensors` of a piece; an offloaded piece is on the device
        only meanwhile.
        """
        with self._host.lend_tensors([piece.local]):
            for name, tensor in piece.gather_tensors(dtype):
                is_lent = self._host.is_offloaded(tensor)
                yield name, tensor.clone() if is_lent else tensor

    def _list_constants(self) -> dict[str, Tensor]:
        """Tensors of the model's files that are never trained, by name."""
        return {}

    def _reduce_gradients(self) -> list[Tensor]:
        """Gradients of the pieces, over all ranks."""
        return [piece.read_gradient() for piece in self.pieces]

    def _forget_gradients(self) -> None:
        for piece in self.pieces:
            piece.parameter.grad = None

    def _open_autocast(self) -> torch.autocast:
        """The autocast context of the learner's type."""
        return open_autocast(self.device, self.section.dtype)

    def _micro_batches(self, batch: Batch, passes: RowPasses) -> MicroBatches:
        """Cuts a batch into micro-batches, with groups intact; moves weights to the device."""
        self._host.reload_tensors(self._weights)
        if passes is None and self.section.rows_per_pass is not None:
            passes = cut_in_order(len(batch.group_lengths), self.section.rows_per_pass)
        elif passes is None:
            budget = self.section.micro_batch_tokens
            families = find_families(batch, budget, self.section.share_prefixes)
            passes = list(map(list_groups, pack_families(families, budget)))
        return MicroBatches(batch, list(map(batch.rows_of, passes)), self._lay_out, self.device)

    @torch.no_grad()
    def _score_columns(
        self, batch: Batch, passes: RowPasses, *columns: Callable[[Outputs], Tensor | None]
    ) -> tuple[Tensor, ...]:
        """Output columns of the full batch, on the CPU, [N] or [B]; empty if on another rank."""
        micros = self._micro_batches(batch, passes)
        parts = [list[Tensor]() for _ in columns]
        order = list[int]()
        for outputs, rows in zip(self._compute_outputs(micros), micros.rows, strict=False):
            order += rows
            for part, column in zip(parts, columns, strict=True):
                value = column(outputs)
                assert value is not None, "this learner's head does not give that column"
                part.extend([value] if rows else [])
        found = tuple(join_passes(batch.lengths, order, part) for part in parts)
        if order and self._scale is not None:
            require_finite("the model's outputs", batch, *found, cure=OVERFLOW)
        return found

    def _is_writer_of(self, piece: ParameterPiece) -> bool:
        """True if this rank, among all that hold the piece, writes it."""
        cut = {name for joined in piece.cut_over for name in joined.split("_")}
        return all(self._ranks.index(name) == 0 for name in DIMENSIONS if name not in cut)


def build_zero_loss(outputs: Outputs) -> Tensor:
    """A zero loss that depends on all outputs, so that its backward pass joins collectives."""
    columns = (
        outputs.logprob,
        outputs.entropy,
        outputs.value,
        outputs.final_value,
        outputs.top_logprob,
    )
    return torch.stack([column.sum() for column in columns if column is not None]).sum() * 0.0


def join_passes(lengths: Tensor, order: Sequence[int], passes: Sequence[Tensor]) -> Tensor:
    """A column of all passes in the order of `lengths`, on the CPU; empty if on another rank."""
    if not order:
        return _NOTHING
    return restore_order(torch.cat(tuple(passes)).cpu(), torch.tensor(order), lengths)


def restore_order(column: Tensor, order_B: Tensor, lengths: Tensor) -> Tensor:
    """Undoes a reordering of sequences: from the order `order_B` to that of `lengths`."""
    if column.shape[0] == order_B.numel():
        return torch.empty_like(column).index_copy_(0, order_B, column)
    carried = Batch(
        torch.zeros(len(column), dtype=torch.int64), lengths[order_B], {"column": column}
    )
    return carried.select(torch.argsort(order_B))["column"]
