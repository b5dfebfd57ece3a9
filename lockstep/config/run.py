"""Options that all training recipes share: model, data, learner, and the run itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, assert_never

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from lockstep.config.machinery import Cluster, LearnerSection
from lockstep.config.recipe import Recipe
from lockstep.config.section import LocalPath, Section, rule
from lockstep.config.sources import DataSection, ModelSection
from lockstep.config.trackers import Trackers


class BestCheckpoints(Section):
    """Checkpoints to keep by a metric's best value."""

    metric: str = Field(description="metric in metrics.jsonl, such as validation/accuracy")
    mode: Literal["max", "min"] = Field(
        default="max", description="whether higher or lower is better"
    )
    count: PositiveInt = Field(default=1, description="number of best checkpoints to keep")
    patience: PositiveInt | None = Field(
        default=None,
        description=(
            "finish the run early if the metric has not improved for this many validations; null: "
            "never"
        ),
    )

    @property
    def is_validated(self) -> bool:
        """True if validations log the metric."""
        return self.metric.startswith(("validation/", "val/"))

    @rule
    def _patience_counts_validations(self) -> None:
        if self.patience is not None and not self.is_validated:
            raise ValueError(
                f"patience counts validations, but {self.metric} is logged at every step; set "
                "best.metric to a metric of validation, such as validation/accuracy"
            )

    def compute_score(self, value: float) -> float:
        """The metric's value as a score, where higher is better; NaN is worst."""
        if math.isnan(value):
            return -math.inf
        match self.mode:
            case "max":
                return value
            case "min":
                return -value
            case _:
                assert_never(self.mode)

    def has_stalled(self, values: Sequence[float]) -> bool:
        """True if the metric has not improved in its last `patience` values."""
        if self.patience is None or len(values) <= self.patience:
            return False
        scores = list(map(self.compute_score, values))
        return max(scores[-self.patience :]) <= max(scores[: -self.patience])


class RunSection(Section):
    """Length of a run, intervals between its events, and its folder."""

    max_steps: int = Field(
        default=-1, ge=-1, le=10**12, description="number of steps; -1: stop after max_epochs"
    )
    max_epochs: PositiveInt = Field(
        default=1, description="passes over the training data if max_steps is -1"
    )
    validate_every: NonNegativeInt = Field(
        default=0, description="steps between validations; 0: only first and last"
    )
    save_every: PositiveInt = Field(
        default=10, description="steps between checkpoints; the last step is always saved"
    )
    keep: PositiveInt = Field(default=2, description="number of newest checkpoints to keep")
    best: BestCheckpoints | None = Field(
        default=None, description="also keep the best checkpoints by a metric"
    )
    max_time_s: PositiveFloat | None = Field(
        default=None,
        description="save and stop before this many seconds; rerun the command to resume",
    )
    num_logged_samples: NonNegativeInt = Field(
        default=8, description="responses per step and validation written to samples.jsonl"
    )
    folder: LocalPath | None = Field(
        default=None, description="run folder; null: runs/<recipe>-<changed options>-<hash>"
    )

    @rule
    def _best_is_known_when_saving(self) -> None:
        if self.best is None or not self.best.is_validated:
            return
        every = self.validate_every
        if not every or self.save_every % every:
            raise ValueError(
                f"best.metric {self.best.metric} is logged only at validations, so save_every = "
                f"{self.save_every} must be a multiple of validate_every = {every}"
            )


WindowStatistic = Literal["mean", "median", "max"]
"""Statistic over the rows of a window."""


class Bound(Section):
    """A metric's bounds for `lockstep check`: a statistic over a window of steps in [min, max].

    A window is less noisy than a single step. A bound also fails if the window has too few rows of
    the metric.
    """

    metric: str = Field(description="a name in metrics.jsonl")
    steps: tuple[NonNegativeInt, NonNegativeInt] = Field(
        description="first and last step of the window, both included"
    )
    statistic: WindowStatistic = Field(
        default="mean", description="statistic over the window's rows"
    )
    rows: PositiveInt | None = Field(
        default=None, description="steps of the window that must have the metric; null: all of them"
    )
    min: float | None = Field(default=None, description="null: no lower bound")
    max: float | None = Field(default=None, description="null: no upper bound")

    @property
    def length(self) -> int:
        """Number of steps in the window."""
        return self.steps[1] - self.steps[0] + 1

    @property
    def min_rows(self) -> int:
        """Minimum number of rows with the metric in the window."""
        if self.rows is None:
            return self.length
        return self.rows

    @property
    def idle_options(self) -> dict[str, str]:
        if self.length == 1:
            return {"statistic": "in a window of one step"}
        return {}

    @rule
    def _a_window_and_a_range(self) -> None:
        if self.length < 1:
            raise ValueError(
                f"steps must be [first, last] with first ≤ last, but are {list(self.steps)}"
            )
        if self.min is None and self.max is None:
            raise ValueError(f"a bound on {self.metric} needs min or max")


class Common(Recipe):
    """Options that every training recipe has."""

    command = "train {recipe}"
    steps_and_epochs = False
    seed: int = Field(default=0, description="key of every random number of the run")
    model: ModelSection
    data: DataSection
    learner: LearnerSection = LearnerSection()
    cluster: Cluster = Cluster()
    trackers: Trackers = Trackers()
    run: RunSection
    acceptance: tuple[Bound, ...] = Field(
        default=(), description="bounds that `lockstep check RUN` reads"
    )

    @property
    def folder(self) -> str | None:
        return self.run.folder

    @property
    def longest_demonstration(self) -> int | None:
        """Tokens of the longest demonstration (prompt and answer); None without demonstrations."""
        return None

    @property
    def trained_first(self) -> str | None:
        return self.model.from_recipe

    def hand_down(self, first: Common) -> dict[str, Any]:
        """The options, by dotted keys, that the recipe trained first takes over from this one.

        These are the seed, device and dtype, and, for the same task, the options that select the
        held-out rows: otherwise the first recipe could train on rows that this one validates on.
        The first recipe keeps its own backend and layout, so that every layout of this recipe
        starts from the same model, which is trained once.
        """
        learner = self.learner
        same: dict[str, Any] = {
            "seed": self.seed,
            "learner.device": learner.device,
            "learner.dtype": learner.dtype,
        }
        task = self.data.task
        other = first.data.task
        if task is not None and other is not None and task.name == other.name:
            options = task.model_dump(mode="json", include=set(task.shared)).items()
            same |= {f"data.task.{name}": value for name, value in options}
        return same

    @property
    def idle_options(self) -> dict[str, str]:
        if self.run.max_steps >= 0 and not self.steps_and_epochs:
            return {"run.max_epochs": "where run.max_steps counts"}
        return {}

    @rule
    def _validation_has_rows(self) -> None:
        if self.data.has_validation:
            return
        validated = {
            "run.validate_every": self.run.validate_every,
            "data.max_validation_samples": self.data.max_validation_samples,
        }
        names = [name for name, value in validated.items() if value]
        if names:
            raise ValueError(
                f"validation rows are missing for {', '.join(names)}; set data.validation"
            )
