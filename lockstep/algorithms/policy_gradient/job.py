"""Jobs of algorithms that sample what they learn from: PPO and GRPO, in order or one step ahead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import assert_never

from lockstep.algorithms.base import StepResult
from lockstep.algorithms.episodes import episodes_of
from lockstep.algorithms.grpo import step as grpo
from lockstep.algorithms.grpo.options import GRPORecipe
from lockstep.algorithms.job import (
    Job,
    Place,
    agreement_of,
    engine_of,
    extent_of,
    held_out_answers,
    learner_of,
    require_context,
    reward_model_of,
    sampler_of,
    validation_of,
)
from lockstep.algorithms.policy_gradient.ahead import Ahead
from lockstep.algorithms.policy_gradient.options import PolicyGradientRecipe
from lockstep.algorithms.policy_gradient.step import Drawn, Rules, Workers, compared, drawn_and_read
from lockstep.algorithms.ppo import step as ppo
from lockstep.algorithms.ppo.options import PPORecipe
from lockstep.algorithms.rows import open_prompts
from lockstep.cluster.sampler_pool import Replicas, processes
from lockstep.cluster.specs import LearnerSpec, SamplerSpec
from lockstep.config import PolicyRecipe
from lockstep.data.prompts import Prompts
from lockstep.data.selection import head
from lockstep.learners.base import Learner
from lockstep.models.source import Source, own_folder
from lockstep.monitor.agreement import Agreement
from lockstep.rewards.rewards import build as build_reward
from lockstep.rewards.rewards import rule_of
from lockstep.rollouts.rollout import Experience
from lockstep.run.loop import Step
from lockstep.run.saver import Lasting


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


def policy_gradient_job(recipe: PolicyRecipe, place: Place) -> Job:
    """Builds the workers of PPO or GRPO, and their step."""
    files, source, options = place.files, place.source, recipe.options
    require_context(recipe, source)
    trained = LearnerSpec(source.folder, "logits", recipe.learner, recipe.policy, recipe.seed)
    policy = learner_of(trained, recipe, place)
    critic = _critic(recipe, place)
    reference = learner_of(trained.frozen, recipe, place) if options.has_reference else None
    size = options.num_prompts_per_step
    apart = _sampler_apart(source, recipe, place) if options.one_step_ahead else None
    rows = open_prompts(
        files.train, recipe.data, source.tokenizer, rule_of(recipe.reward), head(recipe.data.limit_train_batches, size)
    )
    experience = Experience(
        engine_of(policy, apart or sampler_of(policy, source, recipe, place), place),
        rows,
        build_reward(recipe.reward) if recipe.reward_model is None else reward_model_of(recipe, place),
        source.decode,
        recipe.seed,
        episodes_of(recipe.environment, recipe.data, source, place.shown.note),
    )
    agreement = agreement_of(policy, experience.engine, recipe, place)
    workers = Workers(
        policy=policy,
        reference=reference,
        experience=experience,
        phase=place.shown.phase,
        agreement=agreement if apart is None else None,
    )
    algorithm = _algorithm(recipe, workers, critic, place)
    judged = experience
    if recipe.validation_reward is not None:
        judged = replace(experience, reward=build_reward(recipe.validation_reward))
    judge = recipe.validation_reward or recipe.reward
    held_out = held_out_answers(recipe, judge, recipe.validation_sampling, size, judged, place)
    job = Job(
        step=algorithm.step,
        extent=extent_of(recipe, len(rows), size),
        learners={"policy": policy} | ({} if critic is None else {"critic": critic}) | _coefficient(algorithm.rules),
        validate=validation_of(held_out and (lambda step: held_out(algorithm.version(step)))),
        arithmetic=batch_arithmetic(recipe, rows),
        agreement=agreement,
        section=recipe.section,
    )
    return job if apart is None else _one_step_ahead(job, algorithm, agreement, apart, place)


def _critic(recipe: PolicyRecipe, place: Place) -> Learner | None:
    """V beside π, where the algorithm has one."""
    match recipe:
        case PPORecipe():
            source, section = place.source, recipe.critic_model
            folder = source.folder if section is None else own_folder(section, source)
            return learner_of(LearnerSpec(folder, "value", recipe.learner, recipe.critic, recipe.seed), recipe, place)
        case GRPORecipe():
            return None
        case _:
            assert_never(recipe)


def _algorithm(recipe: PolicyRecipe, workers: Workers, critic: Learner | None, place: Place) -> _Algorithm:
    match recipe:
        case PPORecipe():
            assert critic is not None, "PPO learns a critic"
            ours = ppo.PPOWorkers(
                policy=workers.policy,
                reference=workers.reference,
                experience=workers.experience,
                phase=workers.phase,
                agreement=workers.agreement,
                critic=critic,
            )
            options = ppo.rules(recipe, place.source.stop_token_ids)
            return _Algorithm(
                ours,
                options,
                step=lambda step, position: ppo.ppo_step(step, position, ours, options),
                learn=lambda step, drawn: ppo.learn(step, drawn, ours, options),
                version=lambda step: ppo.policy_version(step, recipe.ppo),
            )
        case GRPORecipe():
            rules = grpo.rules(recipe, place.source.stop_token_ids)
            return _Algorithm(
                workers,
                rules,
                step=lambda step, position: grpo.grpo_step(step, position, workers, rules),
                learn=lambda step, drawn: grpo.learn(step, drawn, workers, rules),
            )
        case _:
            assert_never(recipe)


def _coefficient(rules: Rules) -> dict[str, Lasting]:
    """What a checkpoint holds besides learners: the coefficient of the divergence, where it follows a target."""
    return {} if rules.kl is None or rules.kl.adaptive is None else {"kl": rules.kl}


def _sampler_apart(source: Source, recipe: PolicyRecipe, place: Place) -> Replicas:
    """A sampler in processes of its own, also where one could live in this process: it works while this one does."""
    return processes(SamplerSpec(source.folder, recipe.sampler, recipe.learner), place.shown, place.workers)


def _one_step_ahead(job: Job, algorithm: _Algorithm, agreement: Agreement, sampler: Replicas, place: Place) -> Job:
    ahead = Ahead(
        algorithm.workers.experience.engine,
        draw=lambda position, refitted: drawn_and_read(
            position, refitted, algorithm.workers, algorithm.rules, agreement
        ),
        learn=algorithm.learn,
        compare=lambda step, snapshot, drawn: compared(step, snapshot, drawn, agreement),
        version=algorithm.version,
        extent=job.extent,
        shown=place.shown,
        abandon=sampler.abandon,
    )
    return replace(job, step=ahead, learners={**job.learners, "ahead": ahead})


def batch_arithmetic(recipe: PolicyGradientRecipe, rows: Prompts) -> str:
    """How prompts become optimizer steps, for people."""
    its = recipe.options
    return (
        f"{len(rows)} prompts ({rows.selection.account}); {its.num_prompts_per_step} prompts × {its.num_generations} = "
        f"{its.responses} responses → {its.updates} optimizer steps of {its.global_batch_size} responses"
    )
