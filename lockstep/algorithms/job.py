"""A job: what a run needs around its step; and what the jobs of several algorithms have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, assert_never

from lockstep.algorithms.distill.options import DistillRecipe
from lockstep.algorithms.dpo.options import DPORecipe
from lockstep.algorithms.grpo.options import GRPORecipe
from lockstep.algorithms.ppo.options import PPORecipe
from lockstep.algorithms.reward_model.options import RewardModelRecipe
from lockstep.algorithms.rows import DataFiles, open_prompts
from lockstep.algorithms.self_rewarding.options import SelfRewardingRecipe
from lockstep.algorithms.sft.options import SFTRecipe
from lockstep.cluster.learner_group import launch
from lockstep.cluster.sampler_pool import nearest
from lockstep.cluster.self_check import require_proof
from lockstep.cluster.specs import LearnerSpec, SamplerSpec
from lockstep.cluster.workers import Workers
from lockstep.config import (
    Common,
    EnvironmentSection,
    PolicyRecipe,
    RepeatedSampling,
    RewardSection,
    Sampling,
    SamplingRecipe,
    TrainingRecipe,
    policy_recipe,
    sampling_recipe,
)
from lockstep.data.selection import head
from lockstep.errors import InputError
from lockstep.learners.base import Learner
from lockstep.learners.torch.learner import TorchLearner
from lockstep.metrics import Metrics
from lockstep.models.folder import require_classifier
from lockstep.models.heads import LogitsHead
from lockstep.models.source import Source, reward_folder
from lockstep.monitor.agreement import Agreement, Promise
from lockstep.monitor.watch import FLOOR, Watch
from lockstep.objectives.sequential import DriftTest
from lockstep.report.progress import Progress
from lockstep.rewards.reward_model import RewardModel
from lockstep.rewards.rewards import rule_of
from lockstep.rollouts.engine import Engine
from lockstep.rollouts.evaluation import answered, grading
from lockstep.rollouts.rollout import Experience
from lockstep.run.doctor_reports import doctors_options
from lockstep.run.loop import Extent, Hook, Step
from lockstep.run.saver import Lasting
from lockstep.samplers.base import Sampler
from lockstep.samplers.torch.stateful import torch_sampler
from lockstep.types import SamplingParams
from lockstep.weight_sync.refit import random_probe


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
        extent: How far the run goes.
        learners: What a checkpoint holds, by name; the policy among them, and what else has a state as they do.
        validate: Scores the policy on held-out rows; None where there are none.
        arithmetic: How rows become optimizer steps, for people.
        agreement: Compares both sides at each step; checkpoints hold what it knows. None where nothing samples.
        section: The algorithm's own section of the recipe, for hints.
        hooks: More that look at each step, and know nothing afterwards.
    """

    step: Step
    extent: Extent
    learners: Mapping[str, Lasting]
    validate: Validate | None
    arithmetic: str
    agreement: Agreement | None = None
    section: str = ""
    hooks: tuple[Hook, ...] = ()


@dataclass(frozen=True)
class Place:
    """Where a job is made ready: the run's folder, data, first model and display, and what ends worker processes."""

    folder: Path
    files: DataFiles
    source: Source
    shown: Progress
    workers: Workers


def validation_of(measure: Callable[[int], Metrics] | None) -> Validate | None:
    """A validation that has figures alone; None where nothing is measured."""
    return None if measure is None else lambda step: Validation(measure(step))


def require_context(recipe: TrainingRecipe, source: Source) -> None:
    """Raises ValueError if sequences that the recipe allows do not fit the model."""
    match recipe:
        case SFTRecipe():
            source.require_room("sft.max_tokens", recipe.sft.max_tokens)
        case DPORecipe():
            source.require_room(recipe.limit, recipe.pairs.max_tokens)
        case RewardModelRecipe():
            require_classifier(source.folder)
            source.require_room(recipe.limit, recipe.pairs.max_tokens)
        case PPORecipe() | GRPORecipe():
            if recipe.environment is None:
                _require_answers(recipe, source)
            else:
                _require_answer("environment", recipe.environment, recipe, source)
        case SelfRewardingRecipe():
            _require_answers(recipe, source)
        case DistillRecipe():
            if recipe.distill.max_tokens is not None:
                source.require_room("distill.max_tokens", recipe.distill.max_tokens)
            _require_answers(recipe, source)
        case _:
            assert_never(recipe)


def _require_answers(recipe: SamplingRecipe, source: Source) -> None:
    for option, section in (("sampling", recipe.sampling), ("validation_sampling", recipe.validation_sampling)):
        if section is not None:
            _require_answer(option, section, recipe, source)


def _require_answer(
    option: str, section: Sampling | EnvironmentSection, recipe: SamplingRecipe, source: Source
) -> None:
    tokens = recipe.data.max_prompt_tokens + section.max_tokens
    source.require_room(f"data.max_prompt_tokens + {option}.max_tokens", tokens)


def learner_of(spec: LearnerSpec, recipe: TrainingRecipe, place: Place) -> Learner:
    """In this process where there is one rank and no cluster, else in processes of its own.

    Raises:
        ModelError: If the model is not computed right.
    """
    with place.shown.phase("self-check"):
        require_proof(spec.model, spec.section, torch_sampling(recipe, place.source))
    if place.workers.here and spec.section.in_process:
        return spec.build()
    with place.shown.phase("start learners"):
        learner = launch(spec, recipe.cluster.timeout_s, place.workers)
    place.workers.callback(learner.close)
    return learner


def torch_sampling(recipe: TrainingRecipe, source: Source) -> SamplingParams | None:
    """The distribution that a run's torch samplers draw from; None where it has none."""
    sampled = sampling_recipe(recipe)
    if sampled is None:
        return None
    section = sampled.sampling or sampled.validation_sampling
    match sampled.sampler.backend:
        case "torch":
            return None if section is None else source.sampling(section)
        case "vllm" | "openai":
            return None
        case _:
            assert_never(recipe.sampler.backend)


def reward_model_of(recipe: PolicyRecipe | SelfRewardingRecipe, place: Place) -> RewardModel:
    """The model in a recipe's `reward_model`, which does not learn."""
    assert recipe.reward_model is not None, "the recipe names one"
    folder = reward_folder(recipe.reward_model, place.source)
    spec = LearnerSpec(folder, "reward", recipe.learner, None, recipe.seed)
    return RewardModel(learner_of(spec.frozen, recipe, place))


def policy_and_reference(recipe: DPORecipe | SelfRewardingRecipe, place: Place) -> tuple[Learner, Learner]:
    """The same first model twice, one of them to be trained; in self-rewarding it takes the other's place later."""
    trained = LearnerSpec(place.source.folder, "logits", recipe.learner, recipe.optimizer, recipe.seed)
    match recipe:
        case DPORecipe():
            reference = trained.frozen
        case SelfRewardingRecipe():
            reference = replace(trained, optimizer=None)
        case _:
            assert_never(recipe)
    return learner_of(trained, recipe, place), learner_of(reference, recipe, place)


def extent_of(recipe: Common, rows: int, rows_per_step: int) -> Extent:
    """`max_steps` steps, or else `max_epochs` passes over the data."""
    if recipe.run.max_steps >= 0:
        return Extent(recipe.run.max_steps, None, rows_per_step)
    limit = recipe.run.max_epochs * rows
    if limit < rows_per_step:
        raise InputError(
            f"{limit} rows are fewer than the {rows_per_step} of one step; lower the batch or raise run.max_epochs"
        )
    return Extent(limit // rows_per_step, limit, rows_per_step)


def sampler_of(policy: Learner, source: Source, recipe: SamplingRecipe, place: Place) -> Sampler:
    """Shares the weights of a learner in this process, if both can be here and it computes with no adapters besides."""
    section = recipe.sampler
    shares = place.workers.here and section.in_process and recipe.learner.lora is None
    if shares and isinstance(policy, TorchLearner) and isinstance(policy.model, LogitsHead):
        return torch_sampler(policy.model.lm, section.max_batch_size, recipe.learner.is_bf16)
    return nearest(SamplerSpec(source.folder, section, recipe.learner), place.shown, place.workers)


def engine_of(learner: Learner, sampler: Sampler, place: Place) -> Engine:
    """Samples by the weights of a learner, and attests them."""
    return Engine(sampler, learner, random_probe(place.source.vocabulary, place.source.context), place.shown.phase)


def agreement_of(learner: Learner, engine: Engine, recipe: SamplingRecipe, place: Place) -> Agreement:
    """Compares both sides as the recipe says."""
    section = recipe.agreement
    command = f"lockstep doctor quick {place.source.folder} {doctors_options(recipe)}"
    promise = Promise(section.bound(recipe.learner.is_bf16), section.stops, command)
    watch = None
    if section.drift is not None:
        test = DriftTest(section.drift.false_alarm_rate, section.drift.baseline_steps, section.drift.factor, FLOOR)
        policy = policy_recipe(recipe)
        cure = "" if policy is None else f"{policy.section}.correction weighs it"
        watch = Watch(learner, engine, test, place.shown.note, cure)
    return Agreement(learner, engine, promise, watch, place.shown.note)


def held_out_answers(
    recipe: SamplingRecipe,
    reward: RewardSection | None,
    asked: RepeatedSampling,
    size: int,
    experience: Experience,
    place: Place,
) -> Callable[[int], Metrics] | None:
    """What answers to held-out prompts are worth, by the weights of a version.

    Args:
        recipe: With the data.
        reward: Judges them; None: a reward model does.
        asked: How many, and how they are drawn.
        size: Prompts of a step.
        experience: Answers, with the engine of the policy as it is.
        place: With the rows.
    """
    files = place.files.validation
    if files is None:
        return None
    held_out = head(recipe.data.limit_val_batches, size)
    prompts = open_prompts(files, recipe.data, place.source.tokenizer, rule_of(reward), held_out)
    rows = prompts.first(recipe.data.max_validation_samples)
    policy = policy_recipe(recipe)
    environment = None if policy is None or policy.reward_model is not None else policy.environment
    graded, sampling = grading(reward, environment), place.source.sampling(asked)

    def validate(version: int) -> Metrics:
        with experience.engine.at(version):
            samples = answered(experience, rows, 0, sampling, asked.num_samples)
        return graded.metrics(samples, asked.ks).prefixed("validation")

    return validate
