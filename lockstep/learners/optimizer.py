"""AdamW with a schedule that is a pure function of the update's number, so that nothing of it must be saved."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import assert_never

import torch
from torch import Tensor, nn

from lockstep.config import Optimizer, Schedule
from lockstep.learners.boxes import Boxes
from lockstep.learners.pieces import Box, Piece


def learning_rate(optimizer: Optimizer, update: int) -> float:
    """The learning rate of update number `update`, counted from 0."""
    return optimizer.lr * _factor(optimizer.schedule, update)


def _factor(schedule: Schedule, update: int) -> float:
    if update < schedule.warmup_steps:
        return (update + 1) / schedule.warmup_steps
    match schedule.decay:
        case "constant":
            return 1.0
        case "linear":
            left = 1.0 - _decay_progress(schedule, update)
        case "cosine":
            left = 0.5 * (1.0 + math.cos(math.pi * _decay_progress(schedule, update)))
        case _:
            assert_never(schedule.decay)
    return schedule.final_fraction + (1.0 - schedule.final_fraction) * left


def _decay_progress(schedule: Schedule, update: int) -> float:
    """Share of the decay that is over."""
    assert schedule.decay_steps is not None, "a decay says how long it takes"
    return min(1.0, (update - schedule.warmup_steps) / max(1, schedule.decay_steps - schedule.warmup_steps))


class AdamW:
    """AdamW over one rank's pieces of each parameter; the learning rate is given at each update.

    Args:
        pieces: Updated in place.
        settings: Options of the recipe.
    """

    def __init__(self, pieces: Sequence[Piece], settings: Optimizer) -> None:
        self._max_norm = settings.max_grad_norm
        self._held = {piece.name: (piece, nn.Parameter(piece.local)) for piece in pieces}
        self._inner = torch.optim.AdamW(
            [parameter for _, parameter in self._held.values()],
            lr=settings.lr,
            betas=settings.betas,
            eps=settings.eps,
            weight_decay=settings.weight_decay,
            fused=True,
        )

    def step(self, gradients: Iterable[Tensor], norm: Tensor, lr: float) -> None:
        """One update; gradients in the order of the pieces, and their norm over all ranks."""
        for (_, parameter), gradient in zip(self._held.values(), gradients, strict=True):
            parameter.grad = gradient
        if self._max_norm is not None:
            nn.utils.clip_grads_with_norm_([parameter for _, parameter in self._held.values()], self._max_norm, norm)
        self._inner.param_groups[0]["lr"] = lr
        self._inner.step()
        self._inner.zero_grad()

    def forget(self) -> None:
        """Drops all moments."""
        self._inner.state.clear()

    def tensors(self) -> list[Tensor]:
        """All moments and step counts; none before the first update."""
        return [tensor for state in self._inner.state.values() for tensor in state.values()]

    def moments(self, pieces: Iterable[Piece]) -> Iterator[tuple[str, Tensor, Box]]:
        """First and second moments and step counts by the names of tensors; none before the first update."""
        for piece in pieces:
            state = self._inner.state.get(self._held[piece.name][1], {})
            for box in piece.boxes:
                yield from ((f"{key}.{box.name}", box.read(x) if x.dim() else x, box) for key, x in state.items())

    def restore(self, saved: Boxes) -> None:
        """Puts back what `moments` gave; a parameter it had nothing for starts afresh."""
        self.forget()
        for piece, parameter in self._held.values():
            first = f"step.{piece.boxes[0].name}"
            if first in saved:
                # Fused AdamW keeps its step counts beside the parameters, like the moments.
                state = {"step": saved.read(first, (), ()).to(piece.local.device)}
                for key in ("exp_avg", "exp_avg_sq"):
                    state[key] = torch.zeros_like(piece.local)
                    saved.fill(state[key], piece, f"{key}.{{}}".format)
                self._inner.state[parameter] = state
