"""A job: all that a run needs around its step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from lockstep.algorithms.step import Hook, RunLength, Step
from lockstep.metrics import Metrics
from lockstep.monitor.agreement import Agreement


class Checkpointable(Protocol):
    """State that goes into checkpoints; the three methods are those of `Learner`."""

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


Validate = Callable[[int], Validation]
"""Validates the policy after a number of steps."""


@dataclass(frozen=True)
class Job:
    """A job, ready to run.

    Attributes:
        step: The algorithm's step.
        run_length: Limits on steps and rows, which end the run.
        state: State to checkpoint, by name: each model that the run changes, and all else that steps depend on.
        validate: Scores the policy on held-out rows; None where there are none.
        data: The rows that are trained on, in words.
        held_out: The rows that are validated on, in words; None where there are none.
        arithmetic: The way from rows to optimizer steps, in words.
        agreement: Compares learner and sampler at each step; its state is in checkpoints. None: nothing is sampled.
        section: Name of the algorithm's own section of the recipe, for hints.
        filters_truncated: True if truncated responses are left out of training.
        hooks: Further hooks of each step, without state.
    """

    step: Step
    run_length: RunLength
    state: Mapping[str, Checkpointable]
    validate: Validate | None
    data: str
    held_out: str | None
    arithmetic: str
    agreement: Agreement | None = None
    section: str = ""
    filters_truncated: bool = False
    hooks: tuple[Hook, ...] = ()
