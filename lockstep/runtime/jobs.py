"""Jobs: what each algorithm needs around its step, built from a recipe, ready for the loop."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from lockstep.algorithms.dpo import DPOWorkers, dpo_step, held_out_preference, with_reference
from lockstep.algorithms.ppo import PPOWorkers, policy_version, ppo_step, rules
from lockstep.algorithms.self_rewarding.meta import MetaJudging
from lockstep.algorithms.self_rewarding.step import Rules as SelfRewardingRules
from lockstep.algorithms.self_rewarding.step import SelfRewardingWorkers, self_rewarding_step
from lockstep.algorithms.sft import SFTWorkers, held_out_loss, sft_step
from lockstep.data.files import Files
from lockstep.data.prompts import Prompts
from lockstep.data.selection import head
from lockstep.experience.engine import Engine
from lockstep.experience.evaluation import answered, grading
from lockstep.experience.judge.build import meta_judge, score_judge, score_parser
from lockstep.experience.refit import random_probe
from lockstep.experience.rewards import NoReward, rule_of
from lockstep.experience.rewards import build as build_reward
from lockstep.experience.rollout import Experience
from lockstep.experience.watch import FLOOR, Watch
from lockstep.learners.base import Learner
from lockstep.learners.torch.learner import TorchLearner
from lockstep.losses import preference
from lockstep.losses.preference import Preference
from lockstep.metrics import Metrics
from lockstep.models.heads import LogitsHead
from lockstep.objectives.battles import consistent_wins, position_weighted_wins
from lockstep.objectives.sequential import DriftTest
from lockstep.recipe import (
    Common,
    DoctorSection,
    DPORecipe,
    PPORecipe,
    RepeatedSampling,
    RewardSection,
    SamplingRecipe,
    SelfRewardingRecipe,
    SFTRecipe,
)
from lockstep.runtime.collapse import Collapse
from lockstep.runtime.judges import Policy, answering
from lockstep.runtime.known import asked_of, known_judgements
from lockstep.runtime.loop import Extent, Hook, Step
from lockstep.runtime.parallel import launch
from lockstep.runtime.progress import Progress
from lockstep.runtime.replicas import nearest
from lockstep.runtime.rows import DataFiles, open_demonstrations, open_pairs, open_prompts
from lockstep.runtime.source import Source
from lockstep.runtime.workers import LearnerSpec, SamplerSpec
from lockstep.samplers.base import Sampler
from lockstep.samplers.torch.sampler import TorchSampler


@dataclass(frozen=True)
class Job:
    """A run that is ready to start.

    Attributes:
        step: The algorithm's step.
        extent: How far the run goes.
        learners: What a checkpoint holds, by name; the policy among them.
        validate: Scores the policy, as it is after so many steps, on held-out rows; None where there are none.
        arithmetic: How rows become optimizer steps, for people.
        watch: Looks at each step; checkpoints hold what it knows. None where nothing samples, or nobody asks for it.
        hooks: More that look at each step, and know nothing afterwards.
    """

    step: Step
    extent: Extent
    learners: dict[str, Learner]
    validate: Callable[[int], Metrics] | None
    arithmetic: str
    watch: Watch | None = None
    hooks: tuple[Hook, ...] = ()


@dataclass(frozen=True)
class Place:
    """Where a job is made ready: the run's data, its first model, its display, and what ends worker processes."""

    files: DataFiles
    source: Source
    shown: Progress
    workers: ExitStack


def job_of(recipe: Common, place: Place) -> Job:
    """Builds the workers of a recipe's algorithm and its step."""
    match recipe:
        case SFTRecipe():
            return _sft(recipe, place)
        case DPORecipe():
            return _dpo(recipe, place)
        case SelfRewardingRecipe():
            return _self_rewarding(recipe, place)
        case PPORecipe():
            return _ppo(recipe, place)
        case _:
            raise TypeError(f"no algorithm runs a {type(recipe).__name__}")


def require_context(recipe: SFTRecipe | DPORecipe | PPORecipe | SelfRewardingRecipe, source: Source) -> None:
    """Raises ValueError if sequences that the recipe allows do not fit the model."""
    if isinstance(recipe, SFTRecipe):
        return source.require_room("sft.max_tokens", recipe.sft.max_tokens)
    if isinstance(recipe, DPORecipe):
        return source.require_room("dpo.max_tokens", recipe.dpo.max_tokens)
    for option, sampling in (("sampling", recipe.sampling), ("validation_sampling", recipe.validation_sampling)):
        if sampling is not None:
            tokens = recipe.data.max_prompt_tokens + sampling.max_tokens
            source.require_room(f"data.max_prompt_tokens + {option}.max_tokens", tokens)
    return None


def _learner(spec: LearnerSpec, recipe: Common, place: Place) -> Learner:
    """In this process where there is one rank, else in child processes."""
    if recipe.learner.parallel.dp == 1:
        return spec.build()
    learner = launch(spec, recipe.learner.parallel.dp, recipe.cluster.timeout_s)
    place.workers.callback(learner.close)
    return learner


def _policy_and_reference(recipe: DPORecipe | SelfRewardingRecipe, place: Place) -> tuple[Learner, Learner]:
    """The same first model twice, one of them to be trained."""
    trained = LearnerSpec(place.source.folder, "logits", recipe.learner, recipe.optimizer, recipe.seed)
    return _learner(trained, recipe, place), _learner(replace(trained, optimizer=None), recipe, place)


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


def _sft(recipe: SFTRecipe, place: Place) -> Job:
    files, source = place.files, place.source
    require_context(recipe, source)
    size = recipe.sft.global_batch_size
    rows = open_demonstrations(files.demonstrations, recipe, source, head(recipe.data.limit_train_batches, size))
    spec = LearnerSpec(source.folder, "logits", recipe.learner, recipe.optimizer, recipe.seed)
    policy = _learner(spec, recipe, place)
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
    policy, reference = _policy_and_reference(recipe, place)
    workers = DPOWorkers(policy, reference, pairs, place.shown.phase)
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
    policy = _learner(LearnerSpec(head="logits", optimizer=recipe.policy, **shared), recipe, place)
    critic = _learner(LearnerSpec(head="value", optimizer=recipe.critic, **shared), recipe, place)
    frozen = LearnerSpec(head="logits", optimizer=None, **shared)
    reference = _learner(frozen, recipe, place) if recipe.ppo.kl.coef else None
    options = rules(recipe, source.stop_token_ids)
    limit = head(recipe.data.limit_train_batches, recipe.ppo.num_prompts_per_step)
    experience = Experience(
        _engine(policy, source, recipe, place),
        open_prompts(files.train, recipe.data, source.tokenizer, rule_of(recipe.reward), limit),
        build_reward(recipe.reward),
        source.decode,
        recipe.seed,
    )
    watch = _watch(policy, experience.engine, recipe.doctor, place)
    workers = PPOWorkers(policy, critic, reference, experience, place.shown.phase, watch)
    size = recipe.ppo.num_prompts_per_step
    held_out = _held_out_answers(recipe, recipe.reward, recipe.validation_sampling, size, experience, place)
    rows = experience.prompts
    return Job(
        step=lambda step, position: ppo_step(step, position, workers, options),
        extent=extent_of(recipe, len(rows), recipe.ppo.num_prompts_per_step),
        learners={"policy": policy, "critic": critic},
        validate=None if held_out is None else lambda step: held_out(policy_version(step, recipe.ppo)),
        arithmetic=batch_arithmetic(recipe, rows),
        watch=watch,
    )


def _self_rewarding(recipe: SelfRewardingRecipe, place: Place) -> Job:
    files, source, options = place.files, place.source, recipe.self_rewarding
    require_context(recipe, source)
    policy, reference = _policy_and_reference(recipe, place)
    limit = head(recipe.data.limit_train_batches, options.global_batch_size)
    prompts = open_prompts(files.train, recipe.data, source.tokenizer, head=limit)
    engines = _engines(policy, reference, source, recipe, place)
    actor = engines[0] if options.acting_policy == "current" else engines[1]
    experience = Experience(actor, prompts, NoReward(), source.decode, recipe.seed)
    own = Policy(actor, source)
    judge = score_judge(
        recipe.judge, answering(recipe.judge, recipe.learner, own, place.shown, place.workers), recipe.seed
    )
    rules, meta = self_rewarding_rules(recipe, prompts, source), _meta_judging(recipe, own, place)
    workers = SelfRewardingWorkers(policy, reference, experience, judge, meta, place.shown.phase)
    return Job(
        step=lambda step, position: self_rewarding_step(step, position, workers, rules),
        extent=self_rewarding_extent(recipe, rules),
        learners={"policy": policy, "reference": reference},
        validate=_together(
            _true_worth(recipe, replace(experience, engine=engines[0]), place),  # by the policy as it is
            known_judgements(
                recipe.known,
                files,
                asked_of(judge, actor, engines[0]),
                None if meta is None else asked_of(meta.judge, actor, engines[0]),
                engines[0],
                place.shown.note,
            ),
        ),
        arithmetic=self_rewarding_arithmetic(recipe, prompts, rules),
        hooks=(Collapse(options, place.shown.note),),
    )


def _meta_judging(recipe: SelfRewardingRecipe, policy: Policy, place: Place) -> MetaJudging | None:
    section, options = recipe.meta_judge, recipe.self_rewarding
    if section is None:
        return None
    asked = answering(section, recipe.learner, policy, place.shown, place.workers, "meta_judge")
    return MetaJudging(
        meta_judge(section, asked, recipe.seed),
        consistent_wins if section.battles == "order_consistency" else position_weighted_wins,
        score_parser(recipe.judge).without_score,
        options.meta_max_relative_pcnt,
        section.max_judgement_tokens,
    )


def self_rewarding_rules(recipe: SelfRewardingRecipe, prompts: Prompts, source: Source) -> SelfRewardingRules:
    """Turns a recipe's options into values, once; raises ValueError for iterations without a single step."""
    options = recipe.self_rewarding
    rows = len(prompts) // options.max_iterations if options.prompt_source == "split" else len(prompts)
    rules = SelfRewardingRules(
        options, source.sampling(recipe.sampling), rows, recipe.run.max_epochs, recipe.run.num_logged_samples
    )
    if not rules.steps_per_iteration:
        raise ValueError(
            f"an iteration has {rows * recipe.run.max_epochs} prompts, fewer than the {options.global_batch_size} of "
            "one step; lower self_rewarding.global_batch_size or raise run.max_epochs"
        )
    return rules


def self_rewarding_extent(recipe: SelfRewardingRecipe, rules: SelfRewardingRules) -> Extent:
    """All iterations, or `max_steps` where these are fewer."""
    steps = recipe.self_rewarding.max_iterations * rules.steps_per_iteration
    return Extent(steps if recipe.run.max_steps < 0 else min(steps, recipe.run.max_steps), None, 1)


def self_rewarding_arithmetic(recipe: SelfRewardingRecipe, prompts: Prompts, rules: SelfRewardingRules) -> str:
    """How prompts become optimizer steps, for people."""
    options = recipe.self_rewarding
    return (
        f"{len(prompts)} prompts ({prompts.selection.account}); {options.max_iterations} iterations × "
        f"{rules.steps_per_iteration} steps of {options.global_batch_size} prompts × {options.num_responses_to_gen} "
        f"answers × {recipe.judge.num_evals_to_average} judgements"
        + (", which are judged, too" if recipe.meta_judge else "")
    )


def _engines(
    policy: Learner, reference: Learner, source: Source, recipe: SelfRewardingRecipe, place: Place
) -> tuple[Engine, Engine]:
    """For the policy as it is, and for the reference; one sampler serves both, unless each shares its learner's."""
    probe, phase = random_probe(source.vocabulary, source.context), place.shown.phase
    own = _sampler(policy, source, recipe, place)
    other = _sampler(reference, source, recipe, place) if isinstance(own, TorchSampler) else own
    return Engine(own, policy, probe, phase), Engine(other, reference, probe, phase)


def _together(*measures: Callable[[int], Metrics] | None) -> Callable[[int], Metrics] | None:
    """All that is measured of a version; None where nothing is."""
    told = [measure for measure in measures if measure is not None]
    return (lambda version: sum((measure(version) for measure in told), Metrics())) if told else None


def _true_worth(recipe: SelfRewardingRecipe, experience: Experience, place: Place) -> Callable[[int], Metrics] | None:
    """What the policy's answers to held-out prompts are worth, by something else than its own judgement."""
    reward, asked = recipe.validation_reward, recipe.validation_sampling
    if reward is None or asked is None:
        return None
    judged = replace(experience, reward=build_reward(reward))
    return _held_out_answers(recipe, reward, asked, recipe.self_rewarding.global_batch_size, judged, place)


def _engine(policy: Learner, source: Source, recipe: PPORecipe, place: Place) -> Engine:
    """The sampler with its bracket."""
    sampler = _sampler(policy, source, recipe, place)
    return Engine(sampler, policy, random_probe(source.vocabulary, source.context), place.shown.phase)


def _sampler(policy: Learner, source: Source, recipe: SamplingRecipe, place: Place) -> Sampler:
    """Shares the weights of a learner in this process, if it is one of torch and alone."""
    section = recipe.sampler
    alone = section.backend == "torch" and section.replicas == 1
    if alone and isinstance(policy, TorchLearner) and isinstance(policy.model, LogitsHead):
        return TorchSampler(policy.model.lm, section.max_batch_size, recipe.learner.dtype == "bf16")
    return nearest(SamplerSpec(source.folder, section, recipe.learner), place.shown, place.workers)


def _watch(policy: Learner, engine: Engine, section: DoctorSection, place: Place) -> Watch | None:
    if not section.watch:
        return None
    test = DriftTest(section.false_alarm_rate, section.baseline_steps, section.factor, FLOOR)
    return Watch(policy, engine, test, place.shown.note)


def _held_out_answers(
    recipe: SamplingRecipe,
    reward: RewardSection,
    asked: RepeatedSampling,
    size: int,
    experience: Experience,
    place: Place,
) -> Callable[[int], Metrics] | None:
    """What answers to held-out prompts are worth, by the weights of a version.

    Args:
        recipe: With the data.
        reward: Judges them.
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
    graded, sampling = grading(reward), place.source.sampling(asked)

    def validate(version: int) -> Metrics:
        with experience.engine.at(version):
            samples = answered(experience, rows, 0, sampling, asked.num_samples)
        return graded.metrics(samples, asked.ks).prefixed("validation")

    return validate


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
