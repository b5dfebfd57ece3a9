"""A step of any algorithm, as the loop that runs it sees it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lockstep.metrics import Metrics


@dataclass(frozen=True)
class StepResult:
    """Outcome of one step.

    Attributes:
        metrics: To be logged.
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


@dataclass(frozen=True)
class StepEvent:
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


Hook = Callable[[StepEvent], None]
"""Called after each step. In order: log, validate, save."""
