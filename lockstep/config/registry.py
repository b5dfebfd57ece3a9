"""The recipe class of each `algorithm`: built in, of an installed package, or named by where it is. Imports no torch.

A package brings algorithms by entry points of the group `lockstep.algorithms`; a recipe may also say
`algorithm: file.py:Class` or `package:Class`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lockstep.config.named_code import find_code
from lockstep.config.plugins import Plugins
from lockstep.config.recipe import Recipe
from lockstep.config.user_code import find_file

_BUILT_IN = {
    "sft": "lockstep.algorithms.sft.options:SFTRecipe",
    "ppo": "lockstep.algorithms.ppo.options:PPORecipe",
    "grpo": "lockstep.algorithms.grpo.options:GRPORecipe",
    "dpo": "lockstep.algorithms.dpo.options:DPORecipe",
    "kto": "lockstep.algorithms.kto.options:KTORecipe",
    "orpo": "lockstep.algorithms.orpo.options:ORPORecipe",
    "simpo": "lockstep.algorithms.simpo.options:SimPORecipe",
    "online_dpo": "lockstep.algorithms.online_dpo.options:OnlineDPORecipe",
    "reward_model": "lockstep.algorithms.reward_model.options:RewardModelRecipe",
    "distill": "lockstep.algorithms.distill.options:DistillRecipe",
    "self_rewarding": "lockstep.algorithms.self_rewarding.options:SelfRewardingRecipe",
    "eval": "lockstep.inference.eval_options:EvalRecipe",
    "generate": "lockstep.inference.generate_options:GenerateRecipe",
    "doctor": "lockstep.doctor.options:DoctorRecipe",
    "judge_eval": "lockstep.inference.judge_eval_options:JudgeEvalRecipe",
}

_ALGORITHMS = Plugins("algorithm", Recipe, "lockstep.algorithms.base.Algorithm", _BUILT_IN)


def names() -> tuple[str, ...]:
    """Every `algorithm` that has a name."""
    return _ALGORITHMS.names()


def find(algorithm: str) -> type[Recipe] | None:
    """The recipe's class; None where there is no algorithm of that name.

    Raises:
        InputError: The class that is named cannot be imported, or lacks part of what an algorithm declares.
    """
    return _ALGORITHMS.find(algorithm)


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
