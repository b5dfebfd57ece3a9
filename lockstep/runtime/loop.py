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


@dataclass(frozen=True)
class Extent:
    """How far a run goes.

    Attributes:
        steps: At most so many steps.
        rows: At most so many rows of data; None: any number.
        rows_per_step: What a step takes at least.
    """

    steps: int
    rows: int | None
    rows_per_step: int

    def over(self, step: int, position: int) -> bool:
        """Whether a run that has done `step` steps and used `position` rows is finished."""
        return step >= self.steps or (self.rows is not None and position + self.rows_per_step > self.rows)


def loop(step: Step, start: Start, extent: Extent, progress: Progress, hooks: Sequence[Hook]) -> None:
    """Runs steps from `start` until the extent is over."""
    number, position = start.step, start.position
    while not extent.over(number, position):
        result = step(number, position)
        number, position = number + 1, result.position
        with progress.phase("metrics"):
            floats = result.floats  # the device has to catch up first, which is no fault of the log
        with progress.phase("log"):
            for hook in hooks:
                hook(number, result)
            progress.step(number, floats, result.tokens)
