"""A job: what a run needs around its step; and what the jobs of several algorithms have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from lockstep.data.selection import head
from lockstep.experience.engine import Engine
from lockstep.experience.evaluation import answered, grading
from lockstep.experience.refit import random_probe
from lockstep.experience.reward_model import RewardModel
from lockstep.experience.rewards import rule_of
from lockstep.experience.rollout import Experience
from lockstep.experience.watch import Watch
from lockstep.learners.base import Learner
from lockstep.learners.torch.learner import TorchLearner
from lockstep.metrics import Metrics
from lockstep.models.folder import require_classifier
from lockstep.models.heads import LogitsHead
from lockstep.recipe import (
    Common,
    DistillRecipe,
    DPORecipe,
    PairsRecipe,
    PolicyGradientRecipe,
    RepeatedSampling,
    RewardModelRecipe,
    RewardSection,
    SamplingRecipe,
    SelfRewardingRecipe,
    SFTRecipe,
)
from lockstep.runtime.cluster import Workers
from lockstep.runtime.loop import Extent, Hook, Step
from lockstep.runtime.parallel import launch
from lockstep.runtime.progress import Progress
from lockstep.runtime.replicas import nearest
from lockstep.runtime.rows import DataFiles, open_prompts
from lockstep.runtime.saver import Lasting
from lockstep.runtime.source import Source, reward_folder
from lockstep.runtime.workers import LearnerSpec, SamplerSpec
from lockstep.samplers.base import Sampler
from lockstep.samplers.torch.sampler import TorchSampler


@dataclass(frozen=True)
class Job:
    """A run that is ready to start.

    Attributes:
        step: The algorithm's step.
        extent: How far the run goes.
        learners: What a checkpoint holds, by name; the policy among them, and what else has a state as they do.
        validate: Scores the policy, as it is after so many steps, on held-out rows; None where there are none.
        arithmetic: How rows become optimizer steps, for people.
        watch: Looks at each step; checkpoints hold what it knows. None where nothing samples, or nobody asks for it.
        hooks: More that look at each step, and know nothing afterwards.
    """

    step: Step
    extent: Extent
    learners: Mapping[str, Lasting]
    validate: Callable[[int], Metrics] | None
    arithmetic: str
    watch: Watch | None = None
    hooks: tuple[Hook, ...] = ()


@dataclass(frozen=True)
class Place:
    """Where a job is made ready: the run's folder, data, first model and display, and what ends worker processes."""

    folder: Path
    files: DataFiles
    source: Source
    shown: Progress
    workers: Workers


def require_context(recipe: Common, source: Source) -> None:
    """Raises ValueError if sequences that the recipe allows do not fit the model."""
    match recipe:
        case SFTRecipe():
            source.require_room("sft.max_tokens", recipe.sft.max_tokens)
        case PairsRecipe():
            if isinstance(recipe, RewardModelRecipe):
                require_classifier(source.folder)
            source.require_room(recipe.limit, recipe.pairs.max_tokens)
        case PolicyGradientRecipe() | SelfRewardingRecipe() | DistillRecipe():
            if isinstance(recipe, DistillRecipe) and recipe.distill.max_tokens is not None:
                source.require_room("distill.max_tokens", recipe.distill.max_tokens)
            asked = (("sampling", recipe.sampling), ("validation_sampling", recipe.validation_sampling))
            if isinstance(recipe, PolicyGradientRecipe) and recipe.environment is not None:
                asked = (("environment", recipe.environment),)
            for option, section in asked:
                if section is not None:
                    tokens = recipe.data.max_prompt_tokens + section.max_tokens
                    source.require_room(f"data.max_prompt_tokens + {option}.max_tokens", tokens)


def learner_of(spec: LearnerSpec, recipe: Common, place: Place) -> Learner:
    """In this process where there is one rank and no cluster, else in processes of its own."""
    if place.workers.here and spec.section.in_process:
        return spec.build()
    with place.shown.phase("start learners"):
        learner = launch(spec, recipe.cluster.timeout_s, place.workers)
    place.workers.callback(learner.close)
    return learner


def reward_model_of(recipe: PolicyGradientRecipe | SelfRewardingRecipe, place: Place) -> RewardModel:
    """The model in a recipe's `reward_model`, which does not learn."""
    assert recipe.reward_model is not None, "the recipe names one"
    folder = reward_folder(recipe.reward_model, place.source)
    spec = LearnerSpec(folder, "reward", recipe.learner, None, recipe.seed)
    return RewardModel(learner_of(spec.frozen, recipe, place))


def policy_and_reference(recipe: DPORecipe | SelfRewardingRecipe, place: Place) -> tuple[Learner, Learner]:
    """The same first model twice, one of them to be trained; in self-rewarding it takes the other's place later."""
    trained = LearnerSpec(place.source.folder, "logits", recipe.learner, recipe.optimizer, recipe.seed)
    reference = trained.frozen if isinstance(recipe, DPORecipe) else replace(trained, optimizer=None)
    return learner_of(trained, recipe, place), learner_of(reference, recipe, place)


def extent_of(recipe: Common, rows: int, rows_per_step: int) -> Extent:
    """`max_steps` steps, or else `max_epochs` passes over the data."""
    if recipe.run.max_steps >= 0:
        return Extent(recipe.run.max_steps, None, rows_per_step)
    limit = recipe.run.max_epochs * rows
    if limit < rows_per_step:
        raise ValueError(
            f"{limit} rows are fewer than the {rows_per_step} of one step; lower the batch or raise run.max_epochs"
        )
    return Extent(limit // rows_per_step, limit, rows_per_step)


def sampler_of(policy: Learner, source: Source, recipe: SamplingRecipe, place: Place) -> Sampler:
    """Shares the weights of a learner in this process, if both can be here and it computes with no adapters besides."""
    section = recipe.sampler
    shares = place.workers.here and section.in_process and recipe.learner.lora is None
    if shares and isinstance(policy, TorchLearner) and isinstance(policy.model, LogitsHead):
        return TorchSampler(policy.model.lm, section.max_batch_size, recipe.learner.dtype == "bf16")
    return nearest(SamplerSpec(source.folder, section, recipe.learner), place.shown, place.workers)


def engine_of(learner: Learner, sampler: Sampler, place: Place) -> Engine:
    """Samples by the weights of a learner, and attests them."""
    return Engine(sampler, learner, random_probe(place.source.vocabulary, place.source.context), place.shown.phase)


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
    environment = None
    if isinstance(recipe, PolicyGradientRecipe) and recipe.reward_model is None:
        environment = recipe.environment
    graded, sampling = grading(reward, environment), place.source.sampling(asked)

    def validate(version: int) -> Metrics:
        with experience.engine.at(version):
            samples = answered(experience, rows, 0, sampling, asked.num_samples)
        return graded.metrics(samples, asked.ks).prefixed("validation")

    return validate
