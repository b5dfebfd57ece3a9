"""The recipe class of each `algorithm`: built in, or a user's own, `file.py:Class`.

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from lockstep.config.plugins import PluginRegistry
from lockstep.config.recipe import Recipe
from lockstep.config.user_code import load_object
from lockstep.core.errors import InputError

_BUILT_IN: dict[str, tuple[str, str | None]] = {
    "sft": ("lockstep.algorithms.sft.options:SFTRecipe", "lockstep.algorithms.sft.job:open_sft"),
    "ppo": ("lockstep.algorithms.ppo.options:PPORecipe", "lockstep.algorithms.ppo.job:open_ppo"),
    "grpo": (
        "lockstep.algorithms.grpo.options:PolicyGradient",
        "lockstep.algorithms.grpo.job:open_grpo",
    ),
    "dpo": ("lockstep.algorithms.dpo.options:DPORecipe", "lockstep.algorithms.dpo.job:open_dpo"),
    "kto": ("lockstep.algorithms.kto.options:KTORecipe", "lockstep.algorithms.kto.job:open_kto"),
    "orpo": (
        "lockstep.algorithms.orpo.options:ORPORecipe",
        "lockstep.algorithms.orpo.job:open_orpo",
    ),
    "simpo": (
        "lockstep.algorithms.simpo.options:SimPORecipe",
        "lockstep.algorithms.simpo.job:open_simpo",
    ),
    "online_dpo": (
        "lockstep.algorithms.online_dpo.options:OnlineDPORecipe",
        "lockstep.algorithms.online_dpo.job:open_online_dpo",
    ),
    "reward_model": (
        "lockstep.algorithms.reward_model.options:RewardModelRecipe",
        "lockstep.algorithms.reward_model.job:open_reward_model",
    ),
    "distill": (
        "lockstep.algorithms.distill.options:DistillRecipe",
        "lockstep.algorithms.distill.job:open_distill",
    ),
    "self_rewarding": (
        "lockstep.algorithms.self_rewarding.options:SelfRewardingRecipe",
        "lockstep.algorithms.self_rewarding.job:open_self_rewarding",
    ),
    "eval": ("lockstep.inference.eval_recipe:EvalRecipe", "lockstep.inference.evaluate:evaluate"),
    "generate": (
        "lockstep.inference.generate_recipe:GenerateRecipe",
        "lockstep.inference.generate:generate",
    ),
    "doctor": ("lockstep_doctor.table.options:DoctorRecipe", None),
    "eval_judge": (
        "lockstep.inference.eval_recipe:EvalJudgeRecipe",
        "lockstep.inference.evaluate_judge:evaluate_judge",
    ),
}
"""Import paths of each algorithm's options class and of the function that opens or runs it."""

_OPTIONS = {name: options for name, (options, _) in _BUILT_IN.items()}
_ALGORITHMS = PluginRegistry("algorithm", Recipe, "lockstep.algorithms.base.Algorithm", _OPTIONS)


def list_algorithms() -> tuple[str, ...]:
    """All built-in values of `algorithm`."""
    return _ALGORITHMS.list_names()


def find_algorithm(algorithm: str) -> type[Recipe] | None:
    """The recipe's class; None if no algorithm has this name.

    Raises:
        InputError: The named class cannot be imported, or lacks a required declaration.
    """
    return _ALGORITHMS.find_class(algorithm)


def find_opener(recipe: type[Recipe]) -> Callable[..., Any]:
    """The function that opens a built-in algorithm, or runs a command.

    It takes the recipe and, for an algorithm, the setup.

    Args:
        recipe: Class of the recipe, built in or a subclass of a built-in one.

    Raises:
        InputError: The class is not built in and does not define `open`.
    """
    openers = dict(_BUILT_IN.values())
    for base in recipe.__mro__:
        opener = openers.get(f"{base.__module__}:{base.__name__}")
        if opener is not None:
            return load_object(opener, "algorithm", "function")
    raise InputError(f"algorithm {recipe.__name__} does not declare: open")


def iterate_algorithms() -> Iterator[tuple[str, type[Recipe]]]:
    """Yields all built-in algorithms with their classes."""
    for name in list_algorithms():
        found = find_algorithm(name)
        assert found is not None, "duplicate name"
        yield name, found
