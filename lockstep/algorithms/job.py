"""A job: what a run needs around its step; and what the jobs of several algorithms build alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from lockstep.algorithms.base import Algorithm, ModelRole
from lockstep.algorithms.rows import open_prompts
from lockstep.algorithms.setup import Setup
from lockstep.algorithms.step import Hook, RunLength, Step
from lockstep.config import Common, EnvironmentSection, RepeatedSampling, RewardSection
from lockstep.data.demonstrations import Demonstrations
from lockstep.data.pairs import Pairs
from lockstep.data.prompts import Prompts
from lockstep.data.selection import head
from lockstep.errors import InputError
from lockstep.learners.base import Learner
from lockstep.metrics import Metrics
from lockstep.monitor.agreement import Agreement, Promise
from lockstep.monitor.doctor_command import doctor_options
from lockstep.monitor.watch import FLOOR, Watch
from lockstep.objectives.sequential import DriftTest
from lockstep.rewards.reward_model import RewardModel
from lockstep.rewards.rewards import Reward, rule_of
from lockstep.rollouts.evaluation import grading, sample_answers
from lockstep.rollouts.rollout import RolloutCollector
from lockstep.rollouts.sampler_session import SamplerSession
from lockstep.samplers.base import Sampler
from lockstep.weight_sync.sync import random_probe


class Checkpointable(Protocol):
    """What goes into checkpoints; the three verbs are as those of `Learner`."""

    def save(self, folder: Path) -> None: ...

    def poll_save(self, wait: bool) -> bool: ...

    def load(self, folder: Path) -> None: ...


@dataclass(frozen=True)
class Validation:
    """What a validation found.

    Attributes:
        metrics: To be logged.
        samples: Rows for the sample log.
    """

    metrics: Metrics
    samples: list[dict[str, Any]] = field(default_factory=list)

    def __add__(self, other: Validation) -> Validation:
        return Validation(self.metrics + other.metrics, self.samples + other.samples)


Validate = Callable[[int], Validation]
"""Measures the policy as it is after so many steps."""


@dataclass(frozen=True)
class Job:
    """A run that is ready to start.

    Attributes:
        step: The algorithm's step.
        run_length: How far the run goes.
        state: What a checkpoint holds, by name: each model that the run changes, and what else steps depend on.
        validate: Scores the policy on held-out rows; None where there are none.
        data: The rows that are trained on, for people.
        held_out: The rows that are validated on, likewise; None where there are none.
        arithmetic: How rows become optimizer steps, likewise.
        agreement: Compares both sides at each step; checkpoints hold what it knows. None where nothing samples.
        section: The algorithm's own section of the recipe, for hints.
        hooks: More that look at each step, and know nothing afterwards.
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
    hooks: tuple[Hook, ...] = ()


def describe(rows: Prompts | Demonstrations | Pairs, what: str) -> str:
    """How many rows there are, and which were left out."""
    return f"{len(rows)} {what} ({rows.selection.account})"


def validate_figures(measure: Callable[[int], Metrics] | None) -> Validate | None:
    """A validation that has figures alone; None where nothing is measured."""
    return None if measure is None else lambda step: Validation(measure(step))


def measure_run_length(recipe: Common, rows: int, rows_per_step: int) -> RunLength:
    """`max_steps` steps, or else `max_epochs` passes over the data.

    Raises:
        InputError: There are not enough rows for one step.
    """
    if recipe.run.max_steps >= 0:
        return RunLength(recipe.run.max_steps, None, rows_per_step)
    limit = recipe.run.max_epochs * rows
    if limit < rows_per_step:
        raise InputError(
            f"{limit} rows are fewer than the {rows_per_step} of one step; lower the batch or raise run.max_epochs"
        )
    return RunLength(limit // rows_per_step, limit, rows_per_step)


def build_engine(setup: Setup, learner: Learner, sampler: Sampler) -> SamplerSession:
    """Samples by the weights of a learner, and attests them."""
    return SamplerSession(sampler, learner, random_probe(setup.source.vocabulary, setup.source.context), setup.phase)


def build_agreement(
    algorithm: Algorithm, setup: Setup, learner: Learner, engine: SamplerSession, cure: str = ""
) -> Agreement:
    """Compares both sides as the recipe says; `cure` is what a user can do about drift, for its alarm."""
    inference = algorithm.inference
    assert inference is not None, "what samples is compared"
    section, options = inference.agreement, doctor_options(algorithm.learner, inference.sampler, inference.sampling)
    command = f"lockstep doctor quick {setup.source.folder} {options}"
    promise = Promise(section.bound(algorithm.learner.is_bf16), section.stops, command)
    watch = None
    if section.drift is not None:
        test = DriftTest(section.drift.false_alarm_rate, section.drift.baseline_steps, section.drift.factor, FLOOR)
        watch = Watch(learner, engine, test, setup.note, cure)
    return Agreement(learner, engine, promise, watch, setup.note)


def open_training(recipe: Common, setup: Setup, reward: RewardSection | None, size: int) -> Prompts:
    """Opens the prompts that are trained on.

    Args:
        recipe: Says how many.
        setup: With their files.
        reward: Scores the answers, so it says what a row needs.
        size: Prompts of a step.
    """
    limit = head(recipe.data.limit_train_batches, size)
    return open_prompts(setup.files.train, recipe.data, setup.source.tokenizer, rule_of(reward), limit)


def open_reward(
    setup: Setup, role: ModelRole | None, section: RewardSection | None, rows: Prompts, option: str
) -> Reward | RewardModel:
    """Opens what scores responses: the reward model, where there is a role for one, else what the section says."""
    return setup.reward(section, rows, option) if role is None else RewardModel(setup.learner(role))


def open_held_out(
    recipe: Common, setup: Setup, reward: RewardSection | None, size: int, judge: bool = False
) -> Prompts | None:
    """Opens held-out prompts.

    Args:
        recipe: Says how many.
        setup: With their files.
        reward: Scores the answers, so it says what a row needs.
        size: Prompts of a step.
        judge: Whether somebody scores the rows that say `judge`.

    Returns:
        None where nothing is held out.
    """
    files = setup.files.validation
    if files is None:
        return None
    limit = head(recipe.data.limit_val_batches, size)
    return open_prompts(files, recipe.data, setup.source.tokenizer, rule_of(reward, judge), limit)


def measure_answers(
    recipe: Common,
    setup: Setup,
    prompts: Prompts,
    collector: RolloutCollector,
    asked: RepeatedSampling,
    reward: RewardSection | None,
    environment: EnvironmentSection | None = None,
) -> Callable[[int], Metrics]:
    """What answers to held-out prompts are worth, by the weights of a version.

    Args:
        recipe: Says how many prompts.
        setup: With the model.
        prompts: Held out.
        collector: Answers, with the engine of the policy as it is, and scores.
        asked: How many answers each gets, and how they are sampled.
        reward: What scores them; None: a reward model or an environment.
        environment: What they are answered by, where that tells which of them pass.
    """
    rows = prompts.first(recipe.data.max_validation_samples)
    graded, sampling = grading(reward, environment), setup.source.sampling(asked)

    def validate(version: int) -> Metrics:
        with collector.engine.at(version):
            samples = sample_answers(collector, rows, 0, sampling, asked.num_samples)
        return graded.metrics(samples, asked.ks).with_prefix("validation")

    return validate
