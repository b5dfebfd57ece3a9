"""Jobs: what each algorithm needs around its step, built from a recipe, ready for the loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lockstep.algorithms.dpo import DPOWorkers, dpo_step, held_out_preference, with_reference
from lockstep.algorithms.ppo import PPOWorkers, Rules, draw, learn, policy_version, ppo_step, rules
from lockstep.algorithms.sft import SFTWorkers, held_out_loss, sft_step
from lockstep.data.files import Files
from lockstep.data.prompts import Prompts
from lockstep.data.selection import head
from lockstep.experience.engine import Engine
from lockstep.experience.refit import random_probe
from lockstep.experience.rewards import build as build_reward
from lockstep.experience.rewards import rule_of
from lockstep.experience.rollout import Experience
from lockstep.experience.watch import FLOOR, Watch
from lockstep.learners.base import Learner
from lockstep.losses import preference
from lockstep.losses.preference import Preference
from lockstep.metrics import Metrics
from lockstep.objectives.sequential import DriftTest
from lockstep.recipe import (
    Common,
    DoctorSection,
    DPORecipe,
    PPORecipe,
    SelfRewardingRecipe,
    SFTRecipe,
)
from lockstep.runtime.ahead import Ahead
from lockstep.runtime.job import (
    Job,
    Place,
    extent_of,
    held_out_answers,
    learner_of,
    policy_and_reference,
    require_context,
    sampler_of,
)
from lockstep.runtime.replicas import Replicas, processes
from lockstep.runtime.rows import open_demonstrations, open_pairs, open_prompts
from lockstep.runtime.self_rewarding import self_rewarding_job
from lockstep.runtime.source import Source
from lockstep.runtime.workers import LearnerSpec, SamplerSpec


def job_of(recipe: Common, place: Place) -> Job:
    """Builds the workers of a recipe's algorithm and its step."""
    match recipe:
        case SFTRecipe():
            return _sft(recipe, place)
        case DPORecipe():
            return _dpo(recipe, place)
        case SelfRewardingRecipe():
            return self_rewarding_job(recipe, place)
        case PPORecipe():
            return _ppo(recipe, place)
        case _:
            raise TypeError(f"no algorithm runs a {type(recipe).__name__}")


def _sft(recipe: SFTRecipe, place: Place) -> Job:
    files, source = place.files, place.source
    require_context(recipe, source)
    size = recipe.sft.global_batch_size
    rows = open_demonstrations(files.demonstrations, recipe, source, head(recipe.data.limit_train_batches, size))
    spec = LearnerSpec(source.folder, "logits", recipe.learner, recipe.optimizer, recipe.seed)
    policy = learner_of(spec, recipe, place)
    workers = SFTWorkers(policy, rows, place.shown.phase)
    return Job(
        step=lambda step, position: sft_step(step, position, workers, size, recipe.seed),
        extent=extent_of(recipe, len(rows), size),
        learners={"policy": policy},
        validate=_held_out_loss(recipe, policy, files.validation, source),
        arithmetic=f"{len(rows)} rows ({rows.selection.account}); {size} rows → 1 optimizer step",
    )


def _dpo(recipe: DPORecipe, place: Place) -> Job:
    files, source, size = place.files, place.source, recipe.dpo.global_batch_size
    require_context(recipe, source)
    pairs = open_pairs(files.train, recipe, source, head(recipe.data.limit_train_batches, size))
    policy, reference = policy_and_reference(recipe, place)
    workers = DPOWorkers(policy, reference, pairs, place.shown.phase, recipe.run.num_logged_samples)
    loss = preference.build(recipe.dpo, recipe.dpo.ref_policy_kl_penalty)
    return Job(
        step=lambda step, position: dpo_step(step, position, workers, loss, size, recipe.seed),
        extent=extent_of(recipe, len(pairs), size),
        learners={"policy": policy},
        validate=_held_out_preference(recipe, workers, loss, place),
        arithmetic=f"{len(pairs)} pairs ({pairs.selection.account}); {size} pairs → 1 optimizer step",
    )


def _ppo(recipe: PPORecipe, place: Place) -> Job:
    files, source = place.files, place.source
    require_context(recipe, source)
    shared: dict[str, Any] = {"model": source.folder, "section": recipe.learner, "seed": recipe.seed}
    policy = learner_of(LearnerSpec(head="logits", optimizer=recipe.policy, **shared), recipe, place)
    critic = learner_of(LearnerSpec(head="value", optimizer=recipe.critic, **shared), recipe, place)
    frozen = LearnerSpec(head="logits", optimizer=None, **shared)
    reference = learner_of(frozen, recipe, place) if recipe.ppo.kl.coef else None
    options = rules(recipe, source.stop_token_ids)
    limit = head(recipe.data.limit_train_batches, recipe.ppo.num_prompts_per_step)
    apart = _sampler_apart(source, recipe, place) if recipe.ppo.one_step_ahead else None
    sampler = apart or sampler_of(policy, source, recipe, place)
    experience = Experience(
        Engine(sampler, policy, random_probe(source.vocabulary, source.context), place.shown.phase),
        open_prompts(files.train, recipe.data, source.tokenizer, rule_of(recipe.reward), limit),
        build_reward(recipe.reward),
        source.decode,
        recipe.seed,
    )
    watch = _watch(policy, experience.engine, recipe.doctor, place)
    workers = PPOWorkers(policy, critic, reference, experience, place.shown.phase, watch)
    size = recipe.ppo.num_prompts_per_step
    held_out = held_out_answers(recipe, recipe.reward, recipe.validation_sampling, size, experience, place)
    rows = experience.prompts
    job = Job(
        step=lambda step, position: ppo_step(step, position, workers, options),
        extent=extent_of(recipe, len(rows), recipe.ppo.num_prompts_per_step),
        learners={"policy": policy, "critic": critic},
        validate=None if held_out is None else lambda step: held_out(policy_version(step, recipe.ppo)),
        arithmetic=batch_arithmetic(recipe, rows),
        watch=watch,
    )
    return job if apart is None else _one_step_ahead(job, workers, options, apart, place)


def _sampler_apart(source: Source, recipe: PPORecipe, place: Place) -> Replicas:
    """A sampler in processes of its own, also where one could live in this process: it works while this one does."""
    return processes(SamplerSpec(source.folder, recipe.sampler, recipe.learner), place.shown, place.workers)


def _one_step_ahead(job: Job, workers: PPOWorkers, options: Rules, sampler: Replicas, place: Place) -> Job:
    ahead = Ahead(
        workers.experience.engine,
        draw=lambda position, refitted: draw(position, refitted, workers, options),
        learn=lambda step, drawn: learn(step, drawn, workers, options),
        version=lambda step: policy_version(step, options.ppo),
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


def _held_out_loss(
    recipe: SFTRecipe, policy: Learner, files: Files | None, source: Source
) -> Callable[[int], Metrics] | None:
    if files is None:
        return None
    held_out = head(recipe.data.limit_val_batches, recipe.sft.global_batch_size)
    rows = open_demonstrations(files, recipe, source, held_out).first(recipe.data.max_validation_samples)
    return lambda step: held_out_loss(policy, rows).prefixed("validation")


def _held_out_preference(
    recipe: DPORecipe, workers: DPOWorkers, loss: Preference, place: Place
) -> Callable[[int], Metrics] | None:
    files, data = place.files.validation, recipe.data
    if files is None:
        return None
    held_out = head(data.limit_val_batches, recipe.dpo.global_batch_size)
    pairs = open_pairs(files, recipe, place.source, held_out).first(data.max_validation_samples)
    scored = with_reference(pairs, workers.reference)
    return lambda step: held_out_preference(workers.policy, scored, loss).prefixed("validation")


def batch_arithmetic(recipe: PPORecipe, rows: Prompts) -> str:
    """How prompts become optimizer steps, for people."""
    ppo = recipe.ppo
    responses = ppo.num_prompts_per_step * ppo.num_generations
    updates = responses // ppo.global_batch_size * ppo.ppo_epochs
    return (
        f"{len(rows)} prompts ({rows.selection.account}); {ppo.num_prompts_per_step} prompts × {ppo.num_generations} = "
        f"{responses} responses → {updates} optimizer steps of {ppo.global_batch_size} responses"
    )
