"""The loop of every run: a step, then the hooks. Nothing else happens between two steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lockstep.algorithms.step import StepResult
from lockstep.runtime.progress import Progress

Step = Callable[[int, int], StepResult]
"""An algorithm's step: number of the step (from 0) and position in the data, to its outcome."""

Hook = Callable[[int, StepResult], None]
"""Called after each step with the number of steps done. In order: log, validate, save."""


@dataclass(frozen=True)
class Start:
    """Where a run begins or goes on: steps done, and rows of data used."""

    step: int = 0
    position: int = 0


def loop(step: Step, start: Start, total: int, progress: Progress, hooks: Sequence[Hook]) -> None:
    """Runs steps `start.step` … `total − 1`."""
    position = start.position
    for number in range(start.step, total):
        result = step(number, position)
        position = result.position
        for hook in hooks:
            hook(number + 1, result)
        progress.step(number + 1, result.metrics.floats(), result.tokens)
