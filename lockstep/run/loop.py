"""The loop of every run: a step, then the hooks. Nothing else happens between two steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from lockstep.algorithms.base import StepResult
from lockstep.report.progress import Progress
from lockstep.run.stop import Stop, Stopped

Step = Callable[[int, int], StepResult]
"""An algorithm's step: number of the step (from 0) and position in the data, to its outcome."""


@dataclass(frozen=True)
class Turn:
    """One time round the loop, as hooks see it.

    Attributes:
        step: Steps done.
        result: Of the newest step.
        finished: Whether the run has reached its end.
        leaving: Whether the loop ends after this turn: the run has reached its end, or is to stop before it.
        values: What was logged of this step; hooks may add.
    """

    step: int
    result: StepResult
    finished: bool
    leaving: bool
    values: dict[str, float] = field(default_factory=dict)


Hook = Callable[[Turn], None]
"""Called after each step. In order: log, validate, save."""


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


def loop(step: Step, start: Start, extent: Extent, progress: Progress, hooks: Sequence[Hook], stop: Stop) -> None:
    """Runs steps from `start` until the extent is over.

    Raises:
        Stopped: If `stop` ended the run before that.
    """
    number, position = start.step, start.position
    stop.begin()
    while not extent.over(number, position):
        result = step(number, position)
        number, position = number + 1, result.position
        finished, why = extent.over(number, position), stop.stepped()
        with progress.phase("metrics"):
            values = result.metrics.floats()  # the device has to catch up first, which is no work of the log
        turn = Turn(number, result, finished, finished or why is not None, values)
        with progress.phase("log"):
            for hook in hooks:
                hook(turn)
            progress.step(number, turn.values, result.tokens)
        if why is not None and not finished:
            reason, code = why
            raise Stopped(f"stopped after step {number}, because {reason}; the same command goes on from there", code)
