"""A first iteration by another algorithm, on the same policy and rows: `first_iteration: {algorithm: sft}`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from pydantic import JsonValue

from lockstep.algorithms.base import Algorithm
from lockstep.config import registry
from lockstep.config.loading import load_section
from lockstep.config.recipe_files import Layer
from lockstep.data.rows import DataError
from lockstep.errors import InputError

if TYPE_CHECKING:
    from lockstep.algorithms.job import Job
    from lockstep.algorithms.self_rewarding.options import SelfRewardingRecipe
    from lockstep.algorithms.setup import Setup
    from lockstep.learners.base import Learner

_OPTION = "self_rewarding.first_iteration"
_SHARED: tuple[str, ...] = ("seed", "model", "data", "learner", "cluster", "optimizer")
"""Sections in which the first iteration follows the recipe."""


def build_first_recipe(recipe: SelfRewardingRecipe, said: Mapping[str, JsonValue]) -> Algorithm:
    """The recipe of the first iteration: the sections it shares with `recipe`, and what `said` adds.

    Its own section follows in rows per step and in the longest sequence, unless `said` has them.

    Raises:
        RecipeError: One of its options is wrong.
        ValueError: There is no such algorithm, or it cannot take the first iteration.
    """
    name = str(said.get("algorithm"))
    found = registry.find(name)
    if found is None or not issubclass(found, Algorithm):
        raise ValueError(f"{_OPTION}.algorithm is {name}, and no algorithm; say sft")
    rows, longest = recipe.self_rewarding.global_batch_size, recipe.data.max_prompt_tokens + recipe.sampling.max_tokens
    section = said.get(name, {})
    shared = recipe.model_dump(mode="json", include=set(_SHARED) & found.model_fields.keys())
    shared["data"].pop("answer")  # of a reward, which the rows of the first iteration have not
    own = {"global_batch_size": rows, "max_tokens": longest, **(section if isinstance(section, dict) else {})}
    first = load_section(found, Layer(_OPTION, {**shared, "run": {"max_steps": 1}, **said, name: own}))
    if first.inference is not None:
        raise ValueError(f"{_OPTION}: {name} samples; choose an algorithm that learns from rows, such as sft")
    if first.models[0] != recipe.policy_role:
        raise ValueError(f"{_OPTION} trains the same policy; leave model, learner and optimizer out of it")
    return first


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
        raise DataError(f"{_OPTION}: {error}") from error
    if job.run_length.rows_per_step != rows.global_batch_size:
        raise InputError(
            f"{_OPTION} takes {job.run_length.rows_per_step} rows a step, and "
            f"self_rewarding.global_batch_size is {rows.global_batch_size}; make them equal"
        )
    return job
