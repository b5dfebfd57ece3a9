"""A job: an algorithm's step, and everything the training loop needs to run it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from lockstep.core.metrics import Metrics
from lockstep.monitor.agreement import Agreement


@dataclass(frozen=True)
class StepResult:
    """Result of one step.

    Attributes:
        metrics: Metrics to log.
        position: Number of training rows used since the start of the run; the next step begins
            there.
        tokens: Number of tokens generated or trained on, for the throughput.
        samples: Rows for the sample log.
    """

    metrics: Metrics
    position: int
    tokens: int
    samples: list[dict[str, Any]] = field(default_factory=list)


StepFunction = Callable[[int, int], StepResult]
"""An algorithm's step: maps the step number (from 0) and the data position to a result."""


@dataclass(frozen=True)
class RunLength:
    """The length of a run.

    Attributes:
        steps: Maximum number of steps.
        rows: Maximum number of rows; None: unlimited.
        rows_per_step: Minimum number of rows per step, except for a smaller last step.
        trains_rest: True to train the rows that do not fill a step in a smaller last step; else
            they are skipped.
    """

    steps: int
    rows: int | None
    rows_per_step: int
    trains_rest: bool = False

    @property
    def rest_row_count(self) -> int:
        """Number of rows at the end of the last epoch that do not fill a step."""
        if self.rows is None:
            return 0
        return self.rows % self.rows_per_step

    def is_over(self, step: int, position: int) -> bool:
        """True if a run is finished after `step` steps and `position` rows."""
        fewest = 1 if self.trains_rest else self.rows_per_step
        return step >= self.steps or (self.rows is not None and position + fewest > self.rows)

    def count_rows(self, position: int) -> int:
        """Number of rows of the step that begins at `position`."""
        if self.rows is None or not self.trains_rest:
            return self.rows_per_step
        return min(self.rows_per_step, self.rows - position)

    def describe_rest(self) -> str | None:
        """Describes what happens to rows that do not fill a step; None if there are none."""
        if not self.rest_row_count:
            return None
        if self.rest_row_count > 1:
            rest = f"the last {self.rest_row_count} of {self.rows} rows"
        else:
            rest = f"the last of {self.rows} rows"
        if self.trains_rest:
            return f"{rest} make a smaller last step, since a step takes {self.rows_per_step}"
        return (
            f"{rest} will not be trained on, since a step takes {self.rows_per_step}; use a "
            "batch size that divides the rows, or set run.max_steps"
        )


@dataclass(frozen=True)
class StepEvent:
    """One iteration of the loop.

    Attributes:
        step: Number of finished steps.
        result: Result of the latest step.
        finished: True if the run is complete.
        leaving: True if the loop ends after this step, because the run is complete or was stopped.
        values: Logged values of this step; a validation adds to them.
    """

    step: int
    result: StepResult
    finished: bool
    leaving: bool
    values: dict[str, float] = field(default_factory=dict)


class Checkpointable(Protocol):
    """State saved in checkpoints; the three methods are as in `Learner`."""

    def save(self, folder: Path) -> None: ...

    def poll_save(self, wait: bool) -> bool: ...

    def load(self, folder: Path) -> None: ...


@dataclass(frozen=True)
class Validation:
    """The result of a validation.

    Attributes:
        metrics: Metrics to log.
        samples: Rows for the sample log.
    """

    metrics: Metrics
    samples: list[dict[str, Any]] = field(default_factory=list)

    def __add__(self, other: Validation) -> Validation:
        return Validation(self.metrics + other.metrics, self.samples + other.samples)


ValidationFunction = Callable[[int], Validation]
"""Validates the policy after a number of steps."""


@dataclass(frozen=True)
class Job:
    """A job, ready to run.

    Attributes:
        step: The algorithm's step.
        run_length: Limits on steps and rows.
        state: State to checkpoint, by name: each model that the run changes, and everything else
            that steps depend on.
        validate: Scores the policy on held-out rows; None if there are none.
        data: Description of the training rows.
        held_out: Description of the validation rows; None if there are none.
        agreement: Compares learner and sampler at each step; its state is checkpointed. None: no
            sampling.
    """

    step: StepFunction
    run_length: RunLength
    state: Mapping[str, Checkpointable]
    validate: ValidationFunction | None
    data: str
    held_out: str | None
    agreement: Agreement | None = None
