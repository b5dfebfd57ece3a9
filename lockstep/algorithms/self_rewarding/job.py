"""The job of self-rewarding training: who acts, who judges, and how a recipe's options become rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import assert_never

from torch import Tensor

from lockstep.algorithms.job import (
    Job,
    Place,
    Validate,
    Validation,
    agreement_of,
    engine_of,
    held_out_answers,
    policy_and_reference,
    require_context,
    reward_model_of,
    sampler_of,
    validation_of,
)
from lockstep.algorithms.rows import DataFiles, open_own_answers, open_prompts
from lockstep.algorithms.self_rewarding.collapse import Collapse
from lockstep.algorithms.self_rewarding.held_out import HeldOut, Twins
from lockstep.algorithms.self_rewarding.known import asked_of, known_judgements, known_rows
from lockstep.algorithms.self_rewarding.meta import MetaJudging
from lockstep.algorithms.self_rewarding.new_prompts import new_prompts
from lockstep.algorithms.self_rewarding.options import SelfRewardingRecipe
from lockstep.algorithms.self_rewarding.scoring import ByJudge, Scoring, Verifiers, by_reward_model
from lockstep.algorithms.self_rewarding.step import Rules, SelfRewardingWorkers, self_rewarding_step
from lockstep.algorithms.self_rewarding.verdicts import leak_test
from lockstep.algorithms.sft.step import SFTWorkers, sft_step
from lockstep.cluster.judges import Policy, answering
from lockstep.config import MetaJudgeSection
from lockstep.data.prompts import Prompts
from lockstep.data.selection import Head, head
from lockstep.errors import InputError
from lockstep.judge.build import meta_judge, score_judge, score_parser
from lockstep.judge.judge import Judge
from lockstep.learners.base import Learner
from lockstep.metrics import Metrics
from lockstep.models.source import Source
from lockstep.objectives.battles import Battles, consistent_wins, position_weighted_wins
from lockstep.rewards.rewards import build as build_reward
from lockstep.rewards.rewards import rule_of
from lockstep.rollouts.engine import Engine
from lockstep.rollouts.rollout import Experience
from lockstep.run.loop import Extent, Step
from lockstep.samplers.torch.sampler import TorchSampler


def self_rewarding_job(recipe: SelfRewardingRecipe, place: Place) -> Job:
    """Builds who answers, who judges, and who learns."""
    files, source, options = place.files, place.source, recipe.self_rewarding
    require_context(recipe, source)
    policy, reference = policy_and_reference(recipe, place)
    limit = head(recipe.data.limit_train_batches, options.global_batch_size)
    wanted = rule_of(recipe.verifier, judge=True)
    prompts = open_prompts(files.train, recipe.data, source.tokenizer, wanted, limit)
    engines = _engines(policy, reference, recipe, place)
    actor = _actor(recipe, *engines)
    own = Policy(actor, source)
    judge = _judge(recipe, own, place)
    reward = build_reward(recipe.verifier) if recipe.reward_model is None else reward_model_of(recipe, place)
    experience = Experience(actor, prompts, reward, source.decode, recipe.seed)
    rules, meta = self_rewarding_rules(recipe, prompts, source), _meta_judging(recipe, own, place)
    written = new_prompts(recipe, prompts, rules.rows, engines[1], source, place.folder)
    imitate = _imitation(recipe, policy, place, limit)
    score = _scoring(recipe, judge)
    acting = policy if actor is engines[0] else reference
    agreement = agreement_of(acting, actor, recipe, place)
    workers = SelfRewardingWorkers(
        policy, reference, experience, score, meta, place.shown.phase, written, imitate, agreement
    )
    return Job(
        step=lambda step, position: self_rewarding_step(step, position, workers, rules),
        extent=self_rewarding_extent(recipe, rules),
        learners={"policy": policy, "reference": reference},
        validate=_together(
            _twins(recipe, workers, rules, place),
            validation_of(_true_worth(recipe, replace(experience, engine=engines[0]), place)),  # by the policy as it is
            judge
            and validation_of(
                known_judgements(
                    known_rows(recipe, files),
                    recipe.known.min_meta_accuracy,
                    asked_of(judge, actor, engines[0]),
                    None if meta is None else replace(meta, judge=asked_of(meta.judge, actor, engines[0])),
                    engines[0],
                    place.shown.note,
                )
            ),
        ),
        arithmetic=self_rewarding_arithmetic(recipe, prompts, rules),
        agreement=agreement,
        section="self_rewarding",
        hooks=(Collapse(options, place.shown.note),),
    )


def _judge(recipe: SelfRewardingRecipe, policy: Policy, place: Place) -> Judge[float] | None:
    if recipe.judge is None:
        return None
    asked = answering(recipe.judge, recipe.learner, policy, place.shown, place.workers)
    return score_judge(recipe.judge, asked, recipe.seed)


def _scoring(recipe: SelfRewardingRecipe, judge: Judge[float] | None) -> Scoring:
    if recipe.judge is None or judge is None:
        return by_reward_model
    return ByJudge(judge, Verifiers(recipe.verifier, recipe.judge.judge_score_low, recipe.judge.judge_score_high))


def _meta_judging(recipe: SelfRewardingRecipe, policy: Policy, place: Place) -> MetaJudging | None:
    section, options = recipe.meta_judge, recipe.self_rewarding
    if section is None or recipe.judge is None:
        return None
    asked = answering(section, recipe.learner, policy, place.shown, place.workers, "meta_judge")
    return MetaJudging(
        meta_judge(section, asked, recipe.seed),
        _wins(section),
        score_parser(recipe.judge).without_score,
        options.meta_max_relative_pcnt,
        section.max_judgement_tokens,
    )


def _wins(section: MetaJudgeSection) -> Callable[[Battles, int], Tensor]:
    """How two verdicts on a pair of judgements count."""
    match section.battles:
        case "order_consistency":
            return consistent_wins
        case "position":
            return position_weighted_wins
        case _:
            assert_never(section.battles)


def _imitation(recipe: SelfRewardingRecipe, policy: Learner, place: Place, limit: Head) -> Step | None:
    """A step of SFT on the answers of the data, where the first iteration is that."""
    options = recipe.self_rewarding
    if not options.first_iteration_sft:
        return None
    rows = open_own_answers(place.files.demonstrations, recipe, place.source, limit)
    workers = SFTWorkers(policy, rows, place.shown.phase)
    return lambda step, position: sft_step(step, position, workers, options.global_batch_size, recipe.seed)


def self_rewarding_rules(recipe: SelfRewardingRecipe, prompts: Prompts, source: Source) -> Rules:
    """Turns a recipe's options into values, once; raises ValueError for iterations without a single step."""
    options = recipe.self_rewarding
    rows = _iteration_rows(recipe, len(prompts))
    rules = Rules(
        options,
        source.sampling(recipe.sampling),
        rows,
        recipe.run.max_epochs,
        recipe.run.num_logged_samples,
        leak_test(options.leak_pattern, None if recipe.judge is None else score_parser(recipe.judge)),
    )
    if not rules.steps_per_iteration:
        raise InputError(
            f"an iteration has {rows * recipe.run.max_epochs} prompts, fewer than the {options.global_batch_size} of "
            "one step; lower self_rewarding.global_batch_size or raise run.max_epochs"
        )
    return rules


def _iteration_rows(recipe: SelfRewardingRecipe, prompts: int) -> int:
    """Prompts of an iteration."""
    match recipe.self_rewarding.prompt_source:
        case "same":
            return prompts
        case "split":
            return prompts // recipe.self_rewarding.max_iterations
        case "new":
            count = None if recipe.new_prompts is None else recipe.new_prompts.count
            return prompts if count is None else count
        case _:
            assert_never(recipe.self_rewarding.prompt_source)


def self_rewarding_extent(recipe: SelfRewardingRecipe, rules: Rules) -> Extent:
    """All iterations, or `max_steps` where these are fewer."""
    steps = recipe.self_rewarding.max_iterations * rules.steps_per_iteration
    return Extent(steps if recipe.run.max_steps < 0 else min(steps, recipe.run.max_steps), None, 1)


def self_rewarding_arithmetic(recipe: SelfRewardingRecipe, prompts: Prompts, rules: Rules) -> str:
    """How prompts become optimizer steps, for people."""
    options = recipe.self_rewarding
    first = ", the first of them on the answers of the data" if options.first_iteration_sft else ""
    written = "" if recipe.new_prompts is None else f"{rules.rows} new prompts after examples from "
    return (
        f"{written}{len(prompts)} prompts ({prompts.selection.account}); {options.max_iterations} iterations × "
        f"{rules.steps_per_iteration} steps of {options.global_batch_size} prompts × {options.num_responses_to_gen} "
        f"answers × {recipe.judge.num_evals_to_average if recipe.judge else 1} judgements"
        + (", which are judged, too" if recipe.meta_judge else "")
        + first
    )


def _engines(policy: Learner, reference: Learner, recipe: SelfRewardingRecipe, place: Place) -> tuple[Engine, Engine]:
    """For the policy as it is, and for the reference; one sampler serves both, unless each shares its learner's."""
    own = sampler_of(policy, place.source, recipe, place)
    shares = isinstance(own, TorchSampler) and recipe.learner.lora is None
    other = sampler_of(reference, place.source, recipe, place) if shares else own
    return engine_of(policy, own, place), engine_of(reference, other, place)


def _actor(recipe: SelfRewardingRecipe, policy: Engine, reference: Engine) -> Engine:
    """Who answers."""
    match recipe.self_rewarding.acting_policy:
        case "current":
            return policy
        case "reference":
            return reference
        case _:
            assert_never(recipe.self_rewarding.acting_policy)


def _together(*measures: Validate | None) -> Validate | None:
    """All that is measured after a step; None where nothing is."""
    told = [measure for measure in measures if measure is not None]
    return (lambda step: sum((measure(step) for measure in told), Validation(Metrics()))) if told else None


def _twins(recipe: SelfRewardingRecipe, workers: SelfRewardingWorkers, rules: Rules, place: Place) -> Validate | None:
    """What training would tell of held-out prompts; None where there are none."""
    prompts = open_held_out(recipe, place.files, place.source)
    if prompts is None:
        return None
    measure = Twins(HeldOut(prompts.first(recipe.data.max_validation_samples), prompts), workers, rules)
    return lambda step: Validation(*measure(step))


def open_held_out(recipe: SelfRewardingRecipe, files: DataFiles, source: Source) -> Prompts | None:
    """Prompts that are answered and judged as those of training are; None where no rows are held out."""
    if files.validation is None:
        return None
    limit = head(recipe.data.limit_val_batches, recipe.self_rewarding.global_batch_size)
    return open_prompts(files.validation, recipe.data, source.tokenizer, rule_of(recipe.verifier, judge=True), limit)


def _true_worth(recipe: SelfRewardingRecipe, experience: Experience, place: Place) -> Callable[[int], Metrics] | None:
    """What the policy's answers to held-out prompts are worth, by something else than its own judgement."""
    reward, asked = recipe.validation_reward, recipe.validation_sampling
    if reward is None or asked is None:
        return None
    judged = replace(experience, reward=build_reward(reward))
    return held_out_answers(recipe, reward, asked, recipe.self_rewarding.global_batch_size, judged, place)
