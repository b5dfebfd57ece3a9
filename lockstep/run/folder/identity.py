"""Identity of a run as flat names and values, to report what changed when it resumes."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from lockstep.config.loading import LoadedRecipe
from lockstep.config.model_recipe import find_weights_folder
from lockstep.config.trust import list_references
from lockstep.core.errors import InputError
from lockstep.models.digests import digest_files, model_files
from lockstep.system.yaml12 import flatten_tree
from lockstep.version import __version__

RunIdentity = dict[str, Any]

_WITH_MODELS = (
    "reward_model.",
    "critic_model.",
    "teacher.",
    "reward.",
    "validation_reward.",
    "judge.",
    "meta_judge.",
)
"""Sections that name further models: each option `path` in them is a model folder."""
_LIBRARIES = ("torch", "transformers", "tokenizers", "math-verify", "sympy")


class ChangedError(InputError):
    """A run would resume with inputs that differ from its original ones; one line per
    difference.
    """


def collect_identity(
    loaded: LoadedRecipe, data: Mapping[str, str], model: Path | None
) -> RunIdentity:
    """Collects everything that the results of a run depend on.

    Args:
        loaded: The recipe.
        data: A digest of each source of rows, by name.
        model: Folder of the initial model; None if the recipe has yet to make it.
    """
    identity = collect_inputs(loaded, data, model)
    identity["code.lockstep"] = f"{__version__} {_digest_own_code()}"
    if loaded.training_recipe.learner.lora is None:
        libraries = _LIBRARIES
    else:
        libraries = (*_LIBRARIES, "peft")
    return identity | {f"code.{name}": importlib.metadata.version(name) for name in libraries}


def collect_inputs(
    loaded: LoadedRecipe, data: Mapping[str, str], model: Path | None
) -> RunIdentity:
    """The identity without library versions; `model` is None if a server has the model."""
    identity = recipe_identity(loaded)
    identity |= {f"data.{name}": own for name, own in data.items()}
    identity |= {} if model is None else model_files(model)
    options = {".".join(keys): value for keys, value in flatten_tree(loaded.dump_options())}
    for name, value in options.items():
        if name.startswith(_WITH_MODELS) and name.endswith(".path") and value is not None:
            path = str(value)
            folder = find_weights_folder(loaded.places.get(path, path))
            identity |= model_files(folder, name.removesuffix(".path"))
    code = list_references(loaded.build_identity())
    return identity | {f"code.{'.'.join(keys)}": digest_files([file]) for keys, _, file in code}


def recipe_identity(loaded: LoadedRecipe) -> RunIdentity:
    """The options of `LoadedRecipe.build_identity`, by flat names."""
    return {
        f"recipe.{'.'.join(keys)}": value for keys, value in flatten_tree(loaded.build_identity())
    }


def list_differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Lists names whose values differ, one line each, in order."""
    names = [*then, *(name for name in now if name not in then)]
    return [
        f"{name} was {_format_value(then.get(name))}, is {_format_value(now.get(name))}"
        for name in names
        if then.get(name) != now.get(name)
    ]


@cache
def _digest_own_code() -> str:
    """A digest of Lockstep's code, read once, since files may change while the process runs."""
    return digest_files(sorted(Path(__file__).parents[2].rglob("*.py")))


def _format_value(value: Any) -> str:
    if value is None:
        return "absent"
    return json.dumps(value, ensure_ascii=False)
