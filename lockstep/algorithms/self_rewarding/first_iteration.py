"""A first iteration by another algorithm, on the same policy and rows: `first_iteration: {algorithm: sft}`."""

from __future__ import annotations

from dataclasses import replace

from lockstep.algorithms.job import Job
from lockstep.algorithms.self_rewarding.options import FIRST_ITERATION, SelfRewardingRecipe, build_first_recipe
from lockstep.algorithms.setup import Setup
from lockstep.data.rows import DataError
from lockstep.errors import InputError
from lockstep.learners.base import Learner


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
