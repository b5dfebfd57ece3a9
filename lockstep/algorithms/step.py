"""The interface of an algorithm's step to the loop that runs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lockstep.metrics import Metrics


@dataclass(frozen=True)
class StepResult:
    """Outcome of one step.

    Attributes:
        metrics: Metrics to log.
        position: Rows of training data used since the start of the run; the next step begins there.
        tokens: Tokens that were generated or trained on, for the throughput.
        samples: Rows for the sample log.
    """

    metrics: Metrics
    position: int
    tokens: int
    samples: list[dict[str, Any]] = field(default_factory=list)


Step = Callable[[int, int], StepResult]
"""An algorithm's step: number of the step (from 0) and position in the data, to its outcome."""


@dataclass(frozen=True)
class RunLength:
    """The length of a run.

    Attributes:
        steps: Greatest number of steps.
        rows: Greatest number of rows of data; None: any number.
        rows_per_step: Fewest rows that a step takes.
    """

    steps: int
    rows: int | None
    rows_per_step: int

    def over(self, step: int, position: int) -> bool:
        """True if a run that has done `step` steps and used `position` rows is finished."""
        return step >= self.steps or (self.rows is not None and position + self.rows_per_step > self.rows)


@dataclass(frozen=True)
class StepEvent:
    """One iteration of the loop, as hooks see it.

    Attributes:
        step: Number of steps done.
        result: Outcome of the newest step.
        finished: True if the run has reached its end.
        leaving: True if the loop ends after this step, at the end of the run or stopped before it.
        values: Logged values of this step; hooks may add to them.
    """

    step: int
    result: StepResult
    finished: bool
    leaving: bool
    values: dict[str, float] = field(default_factory=dict)


Hook = Callable[[StepEvent], None]
"""Called after each step. In order: log, validate, save."""
