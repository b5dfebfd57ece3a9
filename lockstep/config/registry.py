"""The recipe class of each `algorithm`: built in, or named by where it is, `file.py:Class`. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.config.plugins import Plugins
from lockstep.config.recipe import Recipe
from lockstep.config.trust import find_code
from lockstep.config.user_code import find_file, load
from lockstep.core.errors import InputError


@dataclass(frozen=True)
class BuiltIn:
    """Places of a built-in algorithm: its folder, and in it the class of its options and the function that opens it."""

    folder: str
    options: str
    opener: str | None

    @property
    def options_class(self) -> str:
        """The place of the options' class, for imports."""
        return f"{self.folder}.{self.options}"


_BUILT_IN = {
    "sft": BuiltIn("lockstep.algorithms.sft", "options:SFTRecipe", "job:open_sft"),
    "ppo": BuiltIn("lockstep.algorithms.ppo", "options:PPORecipe", "job:open_ppo"),
    "grpo": BuiltIn("lockstep.algorithms.grpo", "options:GRPORecipe", "job:open_grpo"),
    "dpo": BuiltIn("lockstep.algorithms.dpo", "options:DPORecipe", "job:open_dpo"),
    "kto": BuiltIn("lockstep.algorithms.kto", "options:KTORecipe", "job:open_kto"),
    "orpo": BuiltIn("lockstep.algorithms.orpo", "options:ORPORecipe", "job:open_orpo"),
    "simpo": BuiltIn("lockstep.algorithms.simpo", "options:SimPORecipe", "job:open_simpo"),
    "online_dpo": BuiltIn("lockstep.algorithms.online_dpo", "options:OnlineDPORecipe", "job:open_online_dpo"),
    "reward_model": BuiltIn("lockstep.algorithms.reward_model", "options:RewardModelRecipe", "job:open_reward_model"),
    "distill": BuiltIn("lockstep.algorithms.distill", "options:DistillRecipe", "job:open_distill"),
    "self_rewarding": BuiltIn(
        "lockstep.algorithms.self_rewarding", "options:SelfRewardingRecipe", "job:open_self_rewarding"
    ),
    "eval": BuiltIn("lockstep.inference", "eval_recipe:EvalRecipe", "evaluate:evaluate"),
    "generate": BuiltIn("lockstep.inference", "generate_recipe:GenerateRecipe", "generate:generate"),
    "doctor": BuiltIn("lockstep_doctor.table", "options:DoctorRecipe", None),
    "eval_judge": BuiltIn("lockstep.inference", "eval_recipe:EvalJudgeRecipe", "evaluate_judge:evaluate_judge"),
}
_OPTIONS = {name: places.options_class for name, places in _BUILT_IN.items()}
_ALGORITHMS = Plugins("algorithm", Recipe, "lockstep.algorithms.base.Algorithm", _OPTIONS)


def names() -> tuple[str, ...]:
    """Every `algorithm` that has a name."""
    return _ALGORITHMS.names()


def find(algorithm: str) -> type[Recipe] | None:
    """The recipe's class; None where there is no algorithm of that name.

    Raises:
        InputError: The class that is named cannot be imported, or lacks part of what an algorithm declares.
    """
    return _ALGORITHMS.find(algorithm)


def find_opener(recipe: type[Recipe]) -> Callable[..., Any]:
    """The function that opens a built-in algorithm, or runs a command: it takes the recipe, and an algorithm's setup.

    Args:
        recipe: The class of the recipe, or a subclass of one that is built in.

    Raises:
        InputError: Neither is built in, and the class does not define `open`.
    """
    places = {built_in.options_class: built_in for built_in in _BUILT_IN.values()}
    for base in recipe.__mro__:
        found = places.get(f"{base.__module__}:{base.__name__}")
        if found is not None and found.opener is not None:
            return load(f"{found.folder}.{found.opener}", "algorithm", "function")
    raise InputError(f"algorithm {recipe.__name__} does not declare: open")


def list_code(options: Mapping[str, Any]) -> dict[str, Path]:
    """The files of code that a recipe's options name, that of the user's own algorithm among them, by option."""
    algorithm = str(options.get("algorithm"))
    own = None if algorithm in _BUILT_IN else find_file(_ALGORITHMS.place(algorithm))
    return find_code(options) | ({} if own is None else {"algorithm": own})


def every() -> Iterator[tuple[str, type[Recipe]]]:
    """Yields all named algorithms with their classes."""
    for name in names():
        found = find(name)
        assert found is not None, "a name stands for a class"
        yield name, found
