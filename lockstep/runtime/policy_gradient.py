"""Jobs of algorithms that sample what they learn from: PPO and GRPO, in order or one step ahead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from lockstep.algorithms import grpo, ppo
from lockstep.algorithms.policy_gradient import Drawn, Rules, Workers, draw
from lockstep.algorithms.step import StepResult
from lockstep.data.prompts import Prompts
from lockstep.data.selection import head
from lockstep.experience.engine import Engine
from lockstep.experience.rewards import build as build_reward
from lockstep.experience.rewards import rule_of
from lockstep.experience.rollout import Experience
from lockstep.experience.watch import FLOOR, Watch
from lockstep.learners.base import Learner
from lockstep.objectives.sequential import DriftTest
from lockstep.recipe import DoctorSection, GRPORecipe, PolicyGradientRecipe, PPORecipe
from lockstep.runtime.ahead import Ahead
from lockstep.runtime.episodes import episodes_of
from lockstep.runtime.job import (
    Job,
    Place,
    engine_of,
    extent_of,
    held_out_answers,
    learner_of,
    require_context,
    reward_model_of,
    sampler_of,
)
from lockstep.runtime.loop import Step
from lockstep.runtime.replicas import Replicas, processes
from lockstep.runtime.rows import open_prompts
from lockstep.runtime.source import Source, own_folder
from lockstep.runtime.workers import LearnerSpec, SamplerSpec


@dataclass(frozen=True)
class _Algorithm:
    """What is run, by whom.

    Attributes:
        workers: Who does the work.
        rules: The options.
        step: All of an iteration.
        learn: What comes after drawing.
        version: Of the policy's weights, when so many steps are done.
    """

    workers: Workers
    rules: Rules
    step: Step
    learn: Callable[[int, Drawn], StepResult]
    version: Callable[[int], int] = int


def policy_gradient_job(recipe: PolicyGradientRecipe, place: Place) -> Job:
    """Builds the workers of PPO or GRPO, and their step."""
    files, source, options = place.files, place.source, recipe.options
    require_context(recipe, source)
    shared: dict[str, Any] = {"model": source.folder, "section": recipe.learner, "seed": recipe.seed}
    trained = LearnerSpec(head="logits", optimizer=recipe.policy, **shared)
    policy = learner_of(trained, recipe, place)
    learners = {"policy": policy}
    if isinstance(recipe, PPORecipe):
        critic = LearnerSpec(head="value", optimizer=recipe.critic, **shared)
        if recipe.critic_model is not None:
            critic = replace(critic, model=own_folder(recipe.critic_model, source))
        learners["critic"] = learner_of(critic, recipe, place)
    reference = learner_of(trained.frozen, recipe, place) if options.kl.coef else None
    size = options.num_prompts_per_step
    apart = _sampler_apart(source, recipe, place) if options.one_step_ahead else None
    experience = Experience(
        engine_of(policy, apart or sampler_of(policy, source, recipe, place), place),
        open_prompts(
            files.train,
            recipe.data,
            source.tokenizer,
            rule_of(recipe.reward),
            head(recipe.data.limit_train_batches, size),
        ),
        build_reward(recipe.reward) if recipe.reward_model is None else reward_model_of(recipe, place),
        source.decode,
        recipe.seed,
        episodes_of(recipe.environment, recipe.data, source, place.shown.note),
    )
    watch = _watch(policy, experience.engine, recipe.doctor, place)
    algorithm = _algorithm(recipe, learners, reference, experience, watch, place)
    judged = experience
    if recipe.validation_reward is not None:
        judged = replace(experience, reward=build_reward(recipe.validation_reward))
    judge = recipe.validation_reward or recipe.reward
    held_out = held_out_answers(recipe, judge, recipe.validation_sampling, size, judged, place)
    rows = experience.prompts
    job = Job(
        step=algorithm.step,
        extent=extent_of(recipe, len(rows), size),
        learners=learners,
        validate=None if held_out is None else lambda step: held_out(algorithm.version(step)),
        arithmetic=batch_arithmetic(recipe, rows),
        watch=watch,
    )
    return job if apart is None else _one_step_ahead(job, algorithm, apart, place)


def _algorithm(
    recipe: PolicyGradientRecipe,
    learners: dict[str, Learner],
    reference: Learner | None,
    experience: Experience,
    watch: Watch | None,
    place: Place,
) -> _Algorithm:
    shared: dict[str, Any] = {"reference": reference, "experience": experience, "watch": watch, **learners}
    shared["phase"] = place.shown.phase
    match recipe:
        case PPORecipe():
            ours, options = ppo.PPOWorkers(**shared), ppo.rules(recipe, place.source.stop_token_ids)
            return _Algorithm(
                ours,
                options,
                step=lambda step, position: ppo.ppo_step(step, position, ours, options),
                learn=lambda step, drawn: ppo.learn(step, drawn, ours, options),
                version=lambda step: ppo.policy_version(step, recipe.ppo),
            )
        case GRPORecipe():
            workers, rules = Workers(**shared), grpo.rules(recipe, place.source.stop_token_ids)
            return _Algorithm(
                workers,
                rules,
                step=lambda step, position: grpo.grpo_step(step, position, workers, rules),
                learn=lambda step, drawn: grpo.learn(step, drawn, workers, rules),
            )
        case _:
            raise TypeError(f"no algorithm runs a {type(recipe).__name__}")


def _sampler_apart(source: Source, recipe: PolicyGradientRecipe, place: Place) -> Replicas:
    """A sampler in processes of its own, also where one could live in this process: it works while this one does."""
    return processes(SamplerSpec(source.folder, recipe.sampler, recipe.learner), place.shown, place.workers)


def _one_step_ahead(job: Job, algorithm: _Algorithm, sampler: Replicas, place: Place) -> Job:
    ahead = Ahead(
        algorithm.workers.experience.engine,
        draw=lambda position, refitted: draw(position, refitted, algorithm.workers, algorithm.rules),
        learn=algorithm.learn,
        version=algorithm.version,
        extent=job.extent,
        shown=place.shown,
        abandon=sampler.abandon,
    )
    return replace(job, step=ahead, learners={**job.learners, "ahead": ahead})


def _watch(policy: Learner, engine: Engine, section: DoctorSection, place: Place) -> Watch | None:
    if not section.watch:
        return None
    test = DriftTest(section.false_alarm_rate, section.baseline_steps, section.factor, FLOOR)
    return Watch(policy, engine, test, place.shown.note)


def batch_arithmetic(recipe: PolicyGradientRecipe, rows: Prompts) -> str:
    """How prompts become optimizer steps, for people."""
    its = recipe.options
    return (
        f"{len(rows)} prompts ({rows.selection.account}); {its.num_prompts_per_step} prompts × {its.num_generations} = "
        f"{its.responses} responses → {its.updates} optimizer steps of {its.global_batch_size} responses"
    )
