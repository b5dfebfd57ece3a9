"""An optimizer of torch.optim, with a stateless schedule.

The schedule is a pure function of the update's number, so it is never saved.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, assert_never

import torch
from torch import Tensor, nn

from lockstep.config import Optimizer
from lockstep.core.errors import InputError
from lockstep.learners.boxes import BoxReader
from lockstep.learners.pieces import ParameterPiece, TensorBox

_STEPS = "step"
"""torch's name for the step count in each parameter's state."""


def learning_rate(optimizer: Optimizer, update: int) -> float:
    """The learning rate of update number `update`, counted from 0."""
    assert not optimizer.depends_on_run, "a learner that trains has numbers of steps"
    schedule = optimizer.schedule
    if update < schedule.warmup_steps:
        return optimizer.lr * ((update + 1) / schedule.warmup_steps)
    end = schedule.decay_steps or 0
    begin = schedule.warmup_steps
    if schedule.cooldown_steps is not None:
        begin = max(begin, end - schedule.cooldown_steps)
    progress = min(1.0, max(0, update - begin) / max(1, end - begin))
    match schedule.decay:
        case "constant":
            return optimizer.lr
        case "linear":
            left = 1.0 - progress
        case "cosine":
            left = 0.5 * (1.0 + math.cos(math.pi * progress))
        case _:
            assert_never(schedule.decay)
    return optimizer.lr * (schedule.final_fraction + (1.0 - schedule.final_fraction) * left)


class TorchOptimizer:
    """An optimizer of torch.optim over one rank's pieces; each update receives its learning rate.

    Args:
        pieces: Updated in place.
        settings: Options of the recipe.
    """

    def __init__(self, pieces: Sequence[ParameterPiece], settings: Optimizer) -> None:
        self._settings = settings
        self._held = {piece.name: (piece, nn.Parameter(piece.local)) for piece in pieces}
        self._inner = self._build_optimizer()

    def _build_optimizer(self) -> torch.optim.Optimizer:
        match self._settings.name:
            case "AdamW":
                kind = torch.optim.AdamW
            case "RMSprop":
                kind = torch.optim.RMSprop
            case _:
                assert_never(self._settings.name)
        arguments: dict[str, Any] = dict(self._settings.torch_arguments)
        if self._settings.torch_class.fused:
            arguments["fused"] = True
        parameters = [parameter for _, parameter in self._held.values()]
        return kind(parameters, lr=self._settings.lr, **arguments)

    def step(self, gradients: Iterable[Tensor], norm: Tensor, lr: float) -> None:
        """One update, from gradients in the order of the pieces and their norm over all ranks."""
        for (_, parameter), gradient in zip(self._held.values(), gradients, strict=True):
            parameter.grad = gradient
        bound = self._settings.max_grad_norm
        if bound is not None:
            nn.utils.clip_grads_with_norm_(
                [parameter for _, parameter in self._held.values()], bound, norm
            )
        self._inner.param_groups[0]["lr"] = lr
        self._inner.step()
        self._inner.zero_grad()

    def reset_state(self) -> None:
        """Resets all moments and step counts."""
        self._inner = self._build_optimizer()

    def list_tensors(self) -> list[Tensor]:
        """All moments and step counts; none before the first update."""
        tensors = list[Tensor]()
        for state in self._inner.state.values():
            tensors += state.values()
        return tensors

    def list_moments(
        self, pieces: Iterable[ParameterPiece]
    ) -> Iterator[tuple[str, Tensor, TensorBox]]:
        """Moments and step counts by tensor name; empty before the first update."""
        for piece in pieces:
            state = self._inner.state.get(self._held[piece.name][1], {})
            for box in piece.boxes:
                for key, x in state.items():
                    yield f"{key}.{box.name}", box.read_box(x) if x.dim() else x, box

    def restore_moments(self, saved: BoxReader) -> None:
        """Restores saved `list_moments`; a parameter without saved moments starts fresh.

        Raises:
            InputError: A different optimizer class wrote them.
        """
        settings = self._settings
        own = {*settings.torch_class.state, _STEPS}
        found = {name.partition(".")[0] for name in saved.list_names()}
        if found and found != own:
            raise InputError(
                f"the checkpoint has an optimizer's {', '.join(sorted(found))}, and "
                f"{settings.name} keeps {', '.join(sorted(own))}; use the optimizer that wrote it"
            )
        self.reset_state()
        for piece, parameter in self._held.values():
            steps = f"{_STEPS}.{piece.boxes[0].name}"
            if steps not in saved:
                continue
            # A fused optimizer keeps its counts on the parameters' device, like the moments; others
            # read them on the CPU.
            device = piece.local.device if settings.torch_class.fused else "cpu"
            state = {_STEPS: saved.read_box(steps, (), ()).to(device)}
            for key in settings.torch_class.state:
                state[key] = torch.zeros_like(piece.local)
                saved.fill_piece(state[key], piece, f"{key}.{{}}".format)
            self._inner.state[parameter] = state
