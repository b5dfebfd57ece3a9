"""Setup of reward model training."""

from __future__ import annotations

from functools import partial

from lockstep.algorithms.job import Job
from lockstep.algorithms.open_pairs import open_held_out_pairs, open_train_pairs
from lockstep.algorithms.opening import describe, measure_run_length, validate_figures
from lockstep.algorithms.reward_model.options import RewardModelRecipe
from lockstep.algorithms.reward_model.step import RewardModelWorkers, measure_held_out_pairs, reward_model_step
from lockstep.algorithms.setup import Setup
from lockstep.losses.reward import BradleyTerry


def open_reward_model(recipe: RewardModelRecipe, setup: Setup) -> Job:
    """Opens the reward model and its pairs."""
    options = recipe.reward_model
    model = setup.learner(recipe.reward_role)
    held_out, pairs = open_held_out_pairs(recipe, setup), open_train_pairs(recipe, setup)
    workers = RewardModelWorkers(model, pairs, setup.phase, recipe.run.num_logged_samples)
    loss, size = BradleyTerry(options.margin, options.center_rewards_coefficient), options.global_batch_size
    measure = None
    if held_out is not None:
        batch = held_out.first(recipe.data.max_validation_samples)
        measure = validate_figures(lambda step: measure_held_out_pairs(model, batch, loss).with_prefix("validation"))
    run_length = measure_run_length(recipe, len(pairs), size, trains_rest=True)
    return Job(
        step=partial(reward_model_step, workers=workers, loss=loss, run_length=run_length, seed=recipe.seed),
        run_length=run_length,
        state={"reward_model": model},
        validate=measure,
        data=describe(pairs, "pairs"),
        held_out=None if held_out is None else describe(held_out, "pairs"),
        arithmetic=f"{size} pairs → 1 optimizer step",
    )
