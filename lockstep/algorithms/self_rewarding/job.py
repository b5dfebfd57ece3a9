"""Setup of self-rewarding training: acting policy, judges and options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import assert_never

from lockstep.algorithms.job import Job, RunLength, StepFunction, Validation, ValidationFunction
from lockstep.algorithms.learn_answers import open_answers, sft_step
from lockstep.algorithms.opening import (
    build_agreement,
    build_engine,
    describe,
    measure_answers,
    open_held_out,
    validate_figures,
)
from lockstep.algorithms.rows import open_prompts
from lockstep.algorithms.self_rewarding.meta import MetaJudgeSkill, MetaJudging
from lockstep.algorithms.self_rewarding.new_prompts import open_new_prompts
from lockstep.algorithms.self_rewarding.options import SelfRewardingRecipe
from lockstep.algorithms.self_rewarding.step import (
    SelfRewardingSettings,
    SelfRewardingWorkers,
    self_rewarding_step,
)
from lockstep.algorithms.self_rewarding.validation import (
    build_pair_validation,
    measure_judges,
    read_known,
)
from lockstep.algorithms.setup import PolicyJudge, Setup
from lockstep.core.errors import InputError
from lockstep.core.metrics import Metrics
from lockstep.judge.asking import JudgeModel
from lockstep.judge.build import meta_judge, score_judge, score_parser
from lockstep.judge.options import AskedSection
from lockstep.learners.base import Learner
from lockstep.rewards.base import NoReward
from lockstep.rewards.row_rules import NO_ANSWERS
from lockstep.rollouts.rollout import RolloutCollector


def open_self_rewarding(recipe: SelfRewardingRecipe, setup: Setup) -> Job:
    """Opens the acting policy, the judges and the learners."""
    options = recipe.self_rewarding
    policy = setup.learner(recipe.policy_role)
    reference = setup.learner(recipe.reference_role)
    engine, actor = (
        build_engine(setup, learner, setup.sampler(learner)) for learner in (policy, reference)
    )

    def open_judge(section: AskedSection, name: str) -> JudgeModel:
        return setup.open_judge(section, PolicyJudge(actor.generate, setup.source), name)

    judge = score_judge(recipe.judge, open_judge(recipe.judge, "judge"), recipe.seed)
    meta = setup.try_build(lambda: _open_meta_judge(recipe, open_judge), None)
    known = setup.try_build(lambda: read_known(recipe, setup.files), ([], []))
    prompts = open_prompts(setup.files.train, recipe.data, setup.source.tokenizer, NO_ANSWERS)
    settings = _build_settings(recipe, len(prompts), setup)
    first = None
    if options.first_iteration_sft:
        first = open_first_iteration(recipe, policy, setup)
    agreement = build_agreement(recipe, setup, reference, actor)
    workers = SelfRewardingWorkers(
        policy=policy,
        reference=reference,
        collector=RolloutCollector(actor, prompts, NoReward(), setup.source.decode, recipe.seed),
        judge=judge,
        meta=meta,
        phase=setup.phase,
        skill=MetaJudgeSkill(setup.show_note),
        shared_folder=setup.folder / "handed_over",
        new_prompts=open_new_prompts(
            recipe, prompts, settings.rows, actor, setup.source, setup.folder / "prompts"
        ),
        first_iteration=first,
        agreement=agreement,
    )
    held_out = open_held_out(recipe, setup, None)
    by_current_weights = replace(workers.collector, engine=engine)
    steps = options.max_iterations * settings.steps_per_iteration
    steps = steps if recipe.run.max_steps < 0 else min(steps, recipe.run.max_steps)
    reward = recipe.validation_reward
    graded = None if reward is None else open_held_out(recipe, setup, reward)
    return Job(
        step=partial(self_rewarding_step, workers=workers, settings=settings),
        run_length=RunLength(steps, None, options.global_batch_size),
        state={
            **({} if meta is None else {"meta_judge": workers.skill}),
            "policy": policy,
            "reference": reference,
        },
        validate=_combine_validations(
            build_pair_validation(recipe, held_out, workers, settings),
            measure_answers(
                recipe,
                setup,
                graded,
                by_current_weights,
                recipe.validation_sampling,
                None,
                own=reward,
            ),
            validate_figures(measure_judges(known, judge, meta, actor, engine)),
        ),
        data=describe(prompts, "prompts"),
        held_out=None if held_out is None else describe(held_out, "prompts"),
        agreement=agreement,
    )


def _open_meta_judge(
    recipe: SelfRewardingRecipe, answering: Callable[[AskedSection, str], JudgeModel]
) -> MetaJudging | None:
    section = recipe.meta_judge
    if section is None:
        return None
    return MetaJudging(
        meta_judge(section, answering(section, "meta_judge"), recipe.seed),
        section,
        score_parser(recipe.judge).without_score,
        recipe.self_rewarding.meta_max_relative_pcnt,
    )


def _build_settings(
    recipe: SelfRewardingRecipe, prompts: int, setup: Setup
) -> SelfRewardingSettings:
    """Builds the settings of a recipe, and notes the number of unused prompts.

    Raises:
        InputError: An iteration has no step.
    """
    options = recipe.self_rewarding
    rows = prompts
    match options.prompt_source:
        case "same":
            pass
        case "split":
            rows, left_over = divmod(prompts, options.max_iterations)
            if left_over:
                setup.show_note(
                    f"{left_over} of {prompts} prompts are left over from "
                    f"{options.max_iterations} equal iterations"
                )
        case "new":
            if recipe.new_prompts is not None and recipe.new_prompts.count is not None:
                rows = recipe.new_prompts.count
        case _:
            assert_never(options.prompt_source)
    total = rows * recipe.run.max_epochs
    size = options.global_batch_size
    if total < size:
        raise InputError(
            f"an iteration has {total} prompts, fewer than the {size} of a step; lower "
            "self_rewarding.global_batch_size or raise run.max_epochs"
        )
    if total % size:
        setup.show_note(
            f"{total % size} of the {total} prompts of an iteration will not be used, since a "
            f"step takes {size}; use a self_rewarding.global_batch_size that divides them"
        )
    sampling = setup.source.sampling(recipe.sampling)
    return SelfRewardingSettings(options, recipe.run, sampling, rows)


def _combine_validations(*measures: ValidationFunction | None) -> ValidationFunction | None:
    """Combines validations into one; None if there are none."""
    present = [measure for measure in measures if measure is not None]
    if present:
        return lambda step: sum((measure(step) for measure in present), Validation(Metrics()))
    return None


def open_first_iteration(
    recipe: SelfRewardingRecipe, policy: Learner, setup: Setup
) -> StepFunction:
    """Opens the step of a first iteration that trains on demonstrations."""
    size = recipe.self_rewarding.global_batch_size
    data = recipe.data
    longest = data.max_prompt_tokens + recipe.sampling.max_tokens
    limit = "data.max_prompt_tokens + sampling.max_tokens"
    rows = open_answers(setup, setup.files.demonstrations, data, longest, limit)
    return partial(
        sft_step,
        policy=policy,
        demonstrations=rows,
        phase=setup.phase,
        run_length=RunLength(1, None, size),
        seed=recipe.seed,
    )
