"""Setup of self-rewarding training: the acting policy, the judge, and a recipe's options as values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import assert_never

from torch import Tensor

from lockstep.algorithms.job import Job, RunLength, StepEvent, Validate, Validation
from lockstep.algorithms.opening import (
    build_agreement,
    build_engine,
    describe,
    measure_answers,
    open_held_out,
    open_reward,
    validate_figures,
)
from lockstep.algorithms.rows import open_prompts
from lockstep.algorithms.self_rewarding.answers import ByJudge, Scoring, by_reward_model, leak_test
from lockstep.algorithms.self_rewarding.meta import MetaJudging, Skill
from lockstep.algorithms.self_rewarding.new_prompts import new_prompts
from lockstep.algorithms.self_rewarding.options import (
    FIRST_ITERATION,
    SelfRewardingRecipe,
    SelfRewardingSection,
    build_first_recipe,
)
from lockstep.algorithms.self_rewarding.step import SelfRewardingSettings, SelfRewardingWorkers, self_rewarding_step
from lockstep.algorithms.self_rewarding.validation import HeldOut, Twins, measure_judges, read_known
from lockstep.algorithms.setup import Policy, Setup
from lockstep.core.errors import InputError
from lockstep.core.metrics import Metrics
from lockstep.data.prompts import Prompts
from lockstep.data.rows import DataError
from lockstep.judge.build import meta_judge, score_judge, score_parser
from lockstep.judge.judge import Judge
from lockstep.judge.options import MetaJudgeSection
from lockstep.learners.base import Learner
from lockstep.objectives.battles import Battles, consistent_wins, position_weighted_wins
from lockstep.rewards.row_rules import rule_of
from lockstep.rollouts.rollout import RolloutCollector
from lockstep.rollouts.sampler_session import SamplerSession


def open_self_rewarding(recipe: SelfRewardingRecipe, setup: Setup) -> Job:
    """Opens the acting policy, the judges, and the learners."""
    policy, reference = setup.learner(recipe.policy_role), setup.learner(recipe.reference_role)
    engines = tuple(build_engine(setup, learner, setup.sampler(learner)) for learner in (policy, reference))
    actor = _actor(recipe, *engines)
    itself = Policy(actor.generate, setup.source)
    judge = setup.attempt(lambda: _open_judge(recipe, itself, setup), None)
    meta = setup.attempt(lambda: _open_meta_judge(recipe, itself, setup), None)
    known = setup.attempt(lambda: read_known(recipe, setup.files), ([], []))
    prompts = _open_prompts(recipe, setup)
    reward = open_reward(setup, recipe.reward_role, recipe.verifier, prompts, "verifier")
    collector = RolloutCollector(actor, prompts, reward, setup.source.decode, recipe.seed)
    settings = _build_settings(recipe, prompts, setup)
    _note_rest(recipe, len(prompts), settings, setup.note)
    first = setup.attempt(lambda: open_first_iteration(recipe, policy, setup), None)
    agreement = build_agreement(recipe, setup, policy if actor is engines[0] else reference, actor)
    workers = SelfRewardingWorkers(
        policy,
        reference,
        collector,
        _scoring(recipe, judge),
        meta,
        setup.phase,
        Skill(setup.note),
        setup.folder / "handed_over",
        new_prompts(recipe, prompts, settings.rows, engines[1], setup.source, setup.folder),
        None if first is None else first.step,
        agreement,
    )
    held_out = open_held_out(recipe, setup, recipe.verifier, judge=True)
    return Job(
        step=partial(self_rewarding_step, workers=workers, settings=settings),
        run_length=_run_length(recipe, settings),
        state={
            **({} if first is None else first.state),
            **({} if meta is None else {"meta_judge": workers.skill}),
            "policy": policy,
            "reference": reference,
        },
        validate=_together(
            _twins(recipe, held_out, workers, settings),
            validate_figures(_true_worth(recipe, replace(collector, engine=engines[0]), setup)),  # by current weights
            validate_figures(
                measure_judges(known, recipe.known.min_meta_accuracy, judge, meta, actor, engines[0], setup.note)
            ),
        ),
        data=describe(prompts, "prompts"),
        held_out=None if held_out is None else describe(held_out, "prompts"),
        arithmetic=_arithmetic(recipe, len(prompts), settings),
        agreement=agreement,
        hooks=(Collapse(recipe.self_rewarding, setup.note),),
    )


def _open_prompts(recipe: SelfRewardingRecipe, setup: Setup) -> Prompts:
    rule = rule_of(recipe.verifier, True, "verifier")
    return open_prompts(setup.files.train, recipe.data, setup.source.tokenizer, rule)


def _open_judge(recipe: SelfRewardingRecipe, policy: Policy, setup: Setup) -> Judge[float] | None:
    if recipe.judge is None:
        return None
    return score_judge(recipe.judge, setup.answering(recipe.judge, policy, "judge"), recipe.seed)


def _scoring(recipe: SelfRewardingRecipe, judge: Judge[float] | None) -> Scoring:
    if recipe.judge is None or judge is None:
        return by_reward_model
    return ByJudge(judge, recipe.verifier, recipe.judge.judge_score_low, recipe.judge.judge_score_high)


def _open_meta_judge(recipe: SelfRewardingRecipe, policy: Policy, setup: Setup) -> MetaJudging | None:
    section, options = recipe.meta_judge, recipe.self_rewarding
    if section is None or recipe.judge is None:
        return None
    return MetaJudging(
        meta_judge(section, setup.answering(section, policy, "meta_judge"), recipe.seed),
        _wins(section),
        score_parser(recipe.judge).without_score,
        options.meta_max_relative_pcnt,
        section.max_judgement_tokens,
    )


def _wins(section: MetaJudgeSection) -> Callable[[Battles, int], Tensor]:
    """The rule that counts two verdicts on a pair of judgements."""
    match section.battles:
        case "order_consistency":
            return consistent_wins
        case "position":
            return position_weighted_wins
        case _:
            assert_never(section.battles)


def _build_settings(recipe: SelfRewardingRecipe, prompts: Prompts, setup: Setup) -> SelfRewardingSettings:
    """Converts a recipe's options to values, once; raises ValueError for iterations without a single step."""
    options = recipe.self_rewarding
    rows = _iteration_rows(recipe, len(prompts))
    settings = SelfRewardingSettings(
        options,
        setup.source.sampling(recipe.sampling),
        rows,
        recipe.run.max_epochs,
        recipe.run.num_logged_samples,
        leak_test(options.leak_pattern, None if recipe.judge is None else score_parser(recipe.judge)),
    )
    if not settings.steps_per_iteration:
        raise InputError(
            f"an iteration has {rows * recipe.run.max_epochs} prompts, fewer than the {options.global_batch_size} of "
            "one step; lower self_rewarding.global_batch_size or raise run.max_epochs"
        )
    return settings


def _iteration_rows(recipe: SelfRewardingRecipe, prompts: int) -> int:
    """Number of prompts of an iteration."""
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


def _run_length(recipe: SelfRewardingRecipe, settings: SelfRewardingSettings) -> RunLength:
    """The length of a run: all iterations, or `max_steps` if these are fewer."""
    steps = recipe.self_rewarding.max_iterations * settings.steps_per_iteration
    steps = steps if recipe.run.max_steps < 0 else min(steps, recipe.run.max_steps)
    return RunLength(steps, None, settings.options.global_batch_size, epoch=settings.rows)


def _note_rest(
    recipe: SelfRewardingRecipe, found: int, settings: SelfRewardingSettings, note: Callable[[str], None]
) -> None:
    """Says how many prompts do not fill a step of an iteration, or are in none."""
    iterations = recipe.self_rewarding.max_iterations
    if recipe.self_rewarding.prompt_source == "split" and found % iterations:
        note(f"{found % iterations} of {found} prompts are in none of {iterations} equal iterations")
    prompts = settings.rows * recipe.run.max_epochs
    size = settings.options.global_batch_size
    if prompts % size:
        note(
            f"{prompts % size} of the {prompts} prompts of an iteration will not be answered, since a step takes "
            f"{size}; choose a self_rewarding.global_batch_size that divides them"
        )


def _arithmetic(recipe: SelfRewardingRecipe, prompts: int, settings: SelfRewardingSettings) -> str:
    """Describes how prompts become optimizer steps."""
    options = recipe.self_rewarding
    first = "" if options.first_iteration is None else f", the first of them by {options.first_iteration['algorithm']}"
    written = (
        "" if recipe.new_prompts is None else f"{settings.rows} new prompts after examples from {prompts} prompts; "
    )
    return (
        f"{written}{options.max_iterations} iterations × {settings.steps_per_iteration} steps of "
        f"{options.global_batch_size} prompts × {options.num_responses_to_gen} answers × "
        f"{recipe.judge.num_evals_to_average if recipe.judge else 1} judgements"
        + (", which are judged, too" if recipe.meta_judge else "")
        + first
    )


def _actor(recipe: SelfRewardingRecipe, policy: SamplerSession, reference: SamplerSession) -> SamplerSession:
    """The sampler session that answers: the policy's, or the reference's."""
    match recipe.self_rewarding.acting_policy:
        case "current":
            return policy
        case "reference":
            return reference
        case _:
            assert_never(recipe.self_rewarding.acting_policy)


def _together(*measures: Validate | None) -> Validate | None:
    """Combines validations into one; None where there are none."""
    present = [measure for measure in measures if measure is not None]
    return (lambda step: sum((measure(step) for measure in present), Validation(Metrics()))) if present else None


def _twins(
    recipe: SelfRewardingRecipe, prompts: Prompts | None, workers: SelfRewardingWorkers, settings: SelfRewardingSettings
) -> Validate | None:
    """Builds the validation by training's metrics on held-out prompts; None where there are none."""
    if prompts is None:
        return None
    measure = Twins(HeldOut(prompts.first(recipe.data.max_validation_samples), prompts), workers, settings)
    return lambda step: Validation(*measure(step))


def _true_worth(
    recipe: SelfRewardingRecipe, collector: RolloutCollector, setup: Setup
) -> Callable[[int], Metrics] | None:
    """Builds the validation of the policy's answers to held-out prompts by a reward other than its own judgement."""
    reward = recipe.validation_reward
    rows = None if reward is None else open_held_out(recipe, setup, reward)
    return measure_answers(recipe, setup, rows, collector, recipe.validation_sampling, None, own=reward)


def open_first_iteration(recipe: SelfRewardingRecipe, policy: Learner, setup: Setup) -> Job | None:
    """Opens the first iteration's algorithm; None where the policy rewards itself from the start.

    Raises:
        DataError: Its rows cannot be read.
        InputError: A step of it takes another number of rows.
    """
    if recipe.self_rewarding.first_iteration is None:
        return None
    first, rows = build_first_recipe(recipe, recipe.self_rewarding.first_iteration), recipe.self_rewarding
    try:
        job = first.open(setup.for_part(replace(setup.files, validation=None), {recipe.policy_role: policy}))
    except DataError as error:
        raise DataError(f"{FIRST_ITERATION}: {error}") from error
    if job.run_length.rows_per_step != rows.global_batch_size:
        raise InputError(
            f"{FIRST_ITERATION} takes {job.run_length.rows_per_step} rows a step, and "
            f"self_rewarding.global_batch_size is {rows.global_batch_size}; make them equal"
        )
    return job


class Collapse:
    """Notes, once per stretch of steps, that a share is above the recipe's limit.

    Args:
        options: The limits.
        note: Shows a line that stays.
    """

    def __init__(self, options: SelfRewardingSection, note: Callable[[str], None]) -> None:
        self._alarms = {
            "train/top_class_share": (
                options.max_class_share,
                "of the verdicts are one and the same score (self_rewarding.max_class_share); a judge that says one "
                "thing to everything teaches nothing: stop, and begin again from an earlier checkpoint with a higher "
                "ref_policy_kl_penalty, a lower learning rate or fewer judge pairs",
            ),
            "train/leaks": (
                options.max_leak_share,
                "of the answers hold a verdict, as judgements do (self_rewarding.max_leak_share); a judge that has "
                "never seen such answers may reward them: look at samples.jsonl, and lower the learning rate or the "
                "steps of an iteration, or raise sft_loss_weight",
            ),
        }
        self._note = note
        self._above: set[str] = set()

    def __call__(self, event: StepEvent) -> None:
        for metric, (limit, warning) in self._alarms.items():
            share = event.values.get(metric, 0.0)
            if share > limit and metric not in self._above:
                self._note(f"at step {event.step} {share:.0%} {warning}")
            (self._above.add if share > limit else self._above.discard)(metric)
