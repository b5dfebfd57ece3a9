"""What every recipe has, and how long, how often, where to."""

from __future__ import annotations

from pydantic import Field, NonNegativeInt, PositiveInt

from lockstep.recipe.machinery import Cluster, LearnerSection
from lockstep.recipe.section import Section
from lockstep.recipe.sources import DataSection, ModelSection


class Run(Section):
    """How long, how often, where to."""

    max_steps: int = Field(default=-1, ge=-1, description="stop after so many steps; -1: after max_epochs")
    max_epochs: PositiveInt = Field(default=1, description="passes over the training data, where max_steps is -1")
    validate_every: NonNegativeInt = Field(default=0, description="steps between validations; 0: only first and last")
    save_every: PositiveInt = Field(default=10, description="steps between checkpoints; the last step is always saved")
    keep: PositiveInt = Field(default=2, description="newest checkpoints that are kept")
    num_logged_samples: NonNegativeInt = Field(default=8, description="responses a step writes to samples.jsonl")
    folder: str | None = Field(
        default=None, description="run folder; null: runs/<recipe>-<hash of the resolved recipe>"
    )


class Bound(Section):
    """A metric that `lockstep check` expects at a step: within [min, max]."""

    metric: str = Field(description="a name in metrics.jsonl")
    step: NonNegativeInt = Field(description="steps done when it is read")
    min: float | None = Field(default=None, description="null: no lower bound")
    max: float | None = Field(default=None, description="null: no upper bound")


class Common(Section):
    """What every recipe has."""

    seed: int = Field(default=0, description="key of every random number of the run")
    model: ModelSection
    data: DataSection
    learner: LearnerSection = LearnerSection()
    cluster: Cluster = Cluster()
    run: Run
