"""Setup of online DPO."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from lockstep.algorithms.cut_off_note import REWARD_CUT_OFF, CutOffNote
from lockstep.algorithms.job import Job, Validate
from lockstep.algorithms.online_dpo.options import OnlineDPORecipe
from lockstep.algorithms.online_dpo.step import OnlineDPOSettings, OnlineDPOWorkers, online_dpo_step
from lockstep.algorithms.opening import (
    build_agreement,
    build_engine,
    describe,
    measure_answers,
    measure_run_length,
    open_held_out,
    open_reward,
    open_training,
    validate_figures,
)
from lockstep.algorithms.setup import Setup
from lockstep.data.prompts import Prompts
from lockstep.losses import preference
from lockstep.rollouts.rollout import RolloutCollector


def open_online_dpo(recipe: OnlineDPORecipe, setup: Setup) -> Job:
    """Opens the policy, its reference and sampler, the prompts and their reward."""
    options = recipe.online_dpo
    size = options.num_prompts_per_step
    policy, reference = setup.learner(recipe.policy_role), setup.learner(recipe.reference_role)
    engine = build_engine(setup, policy, setup.sampler(policy))
    judge = recipe.validation_reward or recipe.reward
    held_out = setup.attempt(lambda: open_held_out(recipe, setup, judge, size), None)
    rows = open_training(recipe, setup, recipe.reward, size)
    reward = open_reward(setup, recipe.reward_role, recipe.reward, rows, "reward")
    collector = RolloutCollector(engine, rows, reward, setup.source.decode, recipe.seed)
    agreement = build_agreement(recipe, setup, policy, engine)
    run_length = measure_run_length(recipe, len(rows), size, trains_rest=True)
    settings = OnlineDPOSettings(
        options,
        run_length,
        setup.source.sampling(recipe.sampling),
        preference.build(options, options.ref_policy_kl_penalty),
        recipe.run.num_logged_samples,
    )
    workers = OnlineDPOWorkers(policy, reference, collector, agreement, setup.phase)
    return Job(
        step=partial(online_dpo_step, workers=workers, settings=settings),
        run_length=run_length,
        state={"policy": policy},
        validate=None if held_out is None else _validate(recipe, setup, held_out, collector),
        data=describe(rows, "prompts"),
        held_out=None if held_out is None else describe(held_out, "prompts"),
        arithmetic=(
            f"{size} prompts × {options.num_generations} = {options.responses} responses → at most {size} pairs → "
            "1 optimizer step"
        ),
        agreement=agreement,
        section="online_dpo",
        hooks=() if recipe.reward is None else (CutOffNote(setup.note, REWARD_CUT_OFF),),
    )


def _validate(recipe: OnlineDPORecipe, setup: Setup, rows: Prompts, collector: RolloutCollector) -> Validate | None:
    judge = recipe.validation_reward or recipe.reward
    if recipe.validation_reward is not None:
        collector = replace(collector, reward=setup.reward(recipe.validation_reward, rows, "validation_reward"))
    return validate_figures(measure_answers(recipe, setup, rows, collector, recipe.validation_sampling, judge))
