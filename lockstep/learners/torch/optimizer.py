"""AdamW with a schedule that is a pure function of the update's number, so that nothing of it must be saved."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from lockstep.recipe import Optimizer, Schedule


def learning_rate(optimizer: Optimizer, update: int) -> float:
    """The learning rate of update number `update`, counted from 0."""
    return optimizer.lr * _factor(optimizer.schedule, update)


def _factor(schedule: Schedule, update: int) -> float:
    if update < schedule.warmup_steps:
        return (update + 1) / schedule.warmup_steps
    if schedule.decay_steps is None:
        return 1.0
    done = min(1.0, (update - schedule.warmup_steps) / max(1, schedule.decay_steps - schedule.warmup_steps))
    left = 1.0 - done if schedule.decay == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
    return schedule.final_fraction + (1.0 - schedule.final_fraction) * left


def adamw(model: nn.Module, optimizer: Optimizer) -> torch.optim.AdamW:
    """AdamW over the trainable parameters; the learning rate is set before each update."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.AdamW(
        parameters,
        lr=optimizer.lr,
        betas=optimizer.betas,
        eps=optimizer.eps,
        weight_decay=optimizer.weight_decay,
        fused=True,
    )


def moments(model: nn.Module, optimizer: torch.optim.AdamW) -> dict[str, Tensor]:
    """First and second moments and step counts by parameter name; empty before the first update."""
    return {
        f"{key}.{name}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def restore_moments(model: nn.Module, optimizer: torch.optim.AdamW, saved: dict[str, Tensor]) -> None:
    """Puts back what `moments` gave; a parameter it had nothing for starts afresh."""
    optimizer.state.clear()
    keys = ("step", "exp_avg", "exp_avg_sq")
    for name, parameter in model.named_parameters():
        if f"step.{name}" in saved:
            # Fused AdamW keeps its step counts beside the parameters, like the moments.
            optimizer.state[parameter] = {key: saved[f"{key}.{name}"].to(parameter.device) for key in keys}
