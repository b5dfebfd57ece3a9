"""The torch learner: a `transformers` model with a head, packed micro-batches, gradient sums, fp32 master weights."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor, nn

from lockstep.batch import Batch
from lockstep.distributed.reduce import all_reduce_sum
from lockstep.learners.packing import pack
from lockstep.learners.torch.optimizer import adamw, learning_rate, moments, restore_moments
from lockstep.learners.torch.saving import COUNTERS, StateWriter
from lockstep.losses.base import Loss, Outputs, active
from lockstep.metrics import Last, Mean, Metrics, Sum, merged
from lockstep.models.heads import canonical
from lockstep.recipe import LearnerSection, Optimizer


class TorchLearner:
    """Implements `learners.base.Learner` for one rank; with a group, gradients and counts are summed over it.

    Args:
        model: A head of `models.heads` on its backbone; maps a batch to outputs. Moved to the device, fp32.
        section: Device, computation type, micro-batch size.
        optimizer: Settings of AdamW; None for a model that is only scored with.
        group: Data-parallel ranks; None for one process.
    """

    def __init__(
        self,
        model: nn.Module,
        section: LearnerSection,
        optimizer: Optimizer | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self.device = resolve_device(section.device)
        # Always in evaluation mode: dropout would make the trained policy another one than the sampled.
        self.model = model.to(self.device).eval().requires_grad_(optimizer is not None)
        self._section, self._settings, self._group = section, optimizer, group
        self._optimizer = None if optimizer is None else adamw(self.model, optimizer)
        self._count = torch.zeros((), device=self.device)
        self._updates = 0
        self._writer = StateWriter()

    def logprobs(self, batch: Batch) -> Tensor:
        return self._scored(batch, lambda outputs: outputs.logprob)[0]

    def values(self, batch: Batch) -> tuple[Tensor, Tensor]:
        value, final_value = self._scored(batch, lambda outputs: outputs.value, lambda outputs: outputs.final_value)
        return value, final_value

    def forward_backward(self, batch: Batch, loss: Loss) -> Metrics:
        self._count += active(batch, loss.denominator).to(self.device)
        parts: list[Metrics] = []
        for _, micro in self._micro_batches(batch):
            with self._computation():
                outputs = self.model(micro)
            total, metrics = loss(outputs, micro)
            total.backward()
            parts.append(metrics)
        return merged(parts)

    def optim_step(self) -> Metrics:
        assert self._optimizer is not None, "this learner was built without an optimizer"
        assert self._settings is not None, "an optimizer comes with its settings"
        gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in self._parameters()]
        all_reduce_sum([*gradients, self._count], self._group)
        count, lr = float(self._count), learning_rate(self._settings, self._updates)
        self._count.zero_()
        if count == 0:
            self._optimizer.zero_grad()
            return Metrics(updates_skipped=Sum(1.0))
        for parameter, gradient in zip(self._parameters(), gradients, strict=True):
            parameter.grad = gradient.div_(count)
        norm = nn.utils.clip_grad_norm_(self._parameters(), self._settings.max_grad_norm or float("inf"))
        if not torch.isfinite(norm):
            raise FloatingPointError(
                f"the gradient's norm is {float(norm)} at update {self._updates}; lower the learning rate"
            )
        self._optimizer.param_groups[0]["lr"] = lr
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._updates += 1
        return Metrics(grad_norm=Mean(norm), lr=Last(lr))

    def reset_optimizer(self) -> None:
        assert self._optimizer is not None, "this learner was built without an optimizer"
        self._optimizer.state.clear()

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in chain(self.model.named_parameters(), self.model.named_buffers()):
            yield canonical(name), tensor.detach()

    def save(self, folder: Path) -> None:
        files = {"model.safetensors": {name: p.detach() for name, p in self.model.named_parameters()}}
        if self._optimizer is not None:
            files["optimizer.safetensors"] = moments(self.model, self._optimizer)
        self._writer.begin(folder, files, {"updates": self._updates})

    def saved(self, wait: bool) -> bool:
        return self._writer.done(wait)

    def load(self, folder: Path) -> None:
        saved = load_file(folder / "model.safetensors")
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(saved[name])
        if self._optimizer is not None:
            restore_moments(self.model, self._optimizer, load_file(folder / "optimizer.safetensors"))
            self._optimizer.zero_grad()
        self._count.zero_()
        self._updates = int(json.loads((folder / COUNTERS).read_text())["updates"])

    def _parameters(self) -> list[nn.Parameter]:
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def _computation(self) -> torch.autocast:
        """bf16 casts weights for each product and keeps the masters, sums and norms in fp32."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self._section.dtype == "bf16")

    def _micro_batches(self, batch: Batch) -> Iterator[tuple[list[int], Batch]]:
        """Pieces that fit the token budget, with the rows they hold; what belongs together stays together."""
        for groups in pack(batch.group_lengths.tolist(), self._section.micro_batch_tokens):
            rows = batch.rows_of(groups)
            yield rows, batch.select(rows).to(self.device)

    @torch.no_grad()
    def _scored(self, batch: Batch, *columns: Callable[[Outputs], Tensor | None]) -> tuple[Tensor, ...]:
        """Columns of the model's outputs for the whole batch, on the CPU, [N] or [B] each."""
        bins, parts = [], [[] for _ in columns]
        for rows, micro in self._micro_batches(batch):
            with self._computation():
                outputs = self.model(micro)
            bins.append(rows)
            for part, column in zip(parts, columns, strict=True):
                value = column(outputs)
                assert value is not None, "this learner's head does not give that column"
                part.append(value.float().cpu())
        order = torch.tensor([row for rows in bins for row in rows])
        return tuple(restored(torch.cat(part), order, batch.lengths) for part in parts)


def restored(column: Tensor, order_B: Tensor, lengths: Tensor) -> Tensor:
    """Undoes a reordering of sequences: `column` is that of sequences `order_B`; returned in the order of `lengths`."""
    if column.shape[0] == order_B.numel():
        return torch.empty_like(column).index_copy_(0, order_B, column)
    carried = Batch(column, lengths[order_B])
    return carried.select(torch.argsort(order_B)).tokens


def resolve_device(device: str) -> torch.device:
    """`auto` is the GPU where there is one."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("learner.device is cuda, but torch sees no GPU here; use learner.device=cpu or auto")
    return torch.device(device)
