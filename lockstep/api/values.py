"""Python values as recipe values: paths, functions, classes, and rows in memory."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from lockstep.config import user_code
from lockstep.config.recipe_files import RecipeLayer
from lockstep.core.errors import InputError
from lockstep.rewards.options import RewardSection
from lockstep.system.whole_files import write_changed

RowsValue: TypeAlias = str | Path | Iterable[Mapping[str, Any]]
"""A file of rows, or the rows: a list of dicts, a `datasets.Dataset`, any iterable of mappings."""
RewardFunction: TypeAlias = Callable[..., Any]
"""A function `f(prompt, response, answer, row)`, or one with TRL's or verl's parameters; may be an
`async def`.
"""
RewardValue: TypeAlias = (
    str
    | RewardFunction
    | Sequence[RewardFunction]
    | Mapping[str, RewardFunction]
    | Mapping[str, tuple[RewardFunction, float]]
    | Mapping[str, Any]
)
"""A function, several functions, a verifier's name, or the section `reward` as a mapping.

Several functions are a list or a mapping by name, with or without weights. A verifier is, for
example, math.
"""

ROWS = Path("runs") / "rows"
"""Folder for rows passed as Python objects: they are written there, and runs read the files."""

_ROW_KEYS = ("train", "validation")
_REWARDS = ("reward", "validation_reward")
_TRL_KEYWORDS = {
    "train_dataset": "train=…",
    "eval_dataset": "validation=…",
    "reward_funcs": "reward=…",
    "processing_class": "model=…, a folder that also has the tokenizer",
    "peft_config": "learner={'lora': {'rank': …}}",
    "args": "one mapping per section, such as run={'max_steps': …}",
}
"""Keywords of TRL's trainers, and what replaces them."""


def build_tree(options: Mapping[str, Any]) -> dict[str, Any]:
    """Converts keyword arguments to a recipe.

    Short forms become sections: `model` is a folder, `train` and `validation` are rows, a reward is
    a function, a list of functions, names with functions (and weights), or the name of a verifier,
    an environment is a class, trackers are a function. Functions and classes become references, see
    `user_code.make_reference`.

    Raises:
        InputError: A value cannot be part of a recipe, or a row is not a mapping.
    """
    found = [key for key in options if key in _TRL_KEYWORDS]
    if found:
        raise InputError(
            "\n".join(f"instead of TRL's {key}, pass {_TRL_KEYWORDS[key]}" for key in found)
        )
    tree = {key: value for key, value in options.items() if key not in _ROW_KEYS}
    data = _gather_data(options)
    if data:
        tree["data"] = data
    if not isinstance(tree.get("model"), Mapping | None):
        tree["model"] = {"path": read_folder(tree["model"])}
    for key in _REWARDS:
        if callable(tree.get(key)):
            tree[key] = {"type": "python", "function": tree[key]}
        elif isinstance(tree.get(key), list | tuple):
            tree[key] = _sum_rewards(_name_functions(tree[key], key))
        elif _names_functions(tree.get(key)):
            tree[key] = _sum_rewards(tree[key])
    if isinstance(tree.get("environment"), str | type):
        tree["environment"] = {"class_name": tree["environment"]}
    return {key: _make_plain(value, key) for key, value in tree.items()}


def read_folder(model: object) -> str:
    """The folder of a model, or its name on the Hub.

    Raises:
        InputError: It is neither, such as a loaded model.
    """
    if not isinstance(model, str | Path):
        raise InputError(
            f"model is a {type(model).__name__}; pass hf:owner/name, or the folder that "
            "model.save_pretrained and tokenizer.save_pretrained wrote"
        )
    return str(model)


def _gather_data(options: Mapping[str, Any]) -> dict[str, Any]:
    """Builds the section `data`, including the rows given as `train` and `validation`.

    Raises:
        InputError: It is not a mapping, or contains rows that are also given separately.
    """
    given = {} if options.get("data") is None else options["data"]
    if not isinstance(given, Mapping):
        raise InputError(
            f"data is {user_code.describe_object(given)}; pass its options as a mapping, and rows "
            "as train=…"
        )
    data = dict(given)
    for key in _ROW_KEYS:
        if options.get(key) is None:
            continue
        if data.get(key) is not None:
            raise InputError(f"{key} is set both directly and in data; remove one")
        data[key] = _store_rows(options[key], key)
    return data


def read_arguments(source: str, options: Mapping[str, Any]) -> RecipeLayer:
    """Reads keyword arguments that are options of a section.

    Args:
        source: The function that takes them, for messages.
        options: The arguments.

    Raises:
        InputError: A value cannot be part of a recipe.
    """
    return RecipeLayer(source, {key: _make_plain(value, key) for key, value in options.items()})


def _name_functions(functions: Sequence[Any], key: str) -> dict[str, Any]:
    """Maps the names of functions to the functions.

    Raises:
        InputError: One is not a function, or two have the same name.
    """
    found: dict[str, Any] = {}
    for function in functions:
        if not inspect.isfunction(function) or function.__name__ in found:
            raise InputError(
                f"{key} is a list with {function!r}, which has no distinct name; name each: "
                f"{key}={{'format': f, 'answer': g}}"
            )
        found[function.__name__] = function
    return found


def _names_functions(given: Any) -> bool:
    """True for a mapping from names to functions, rather than a section, whose keys are options."""
    return (
        isinstance(given, Mapping)
        and bool(given)
        and all(
            name not in RewardSection.model_fields
            and callable(value[0] if isinstance(value, tuple) and len(value) == 2 else value)
            for name, value in given.items()
        )
    )


def _sum_rewards(named: Mapping[str, Any]) -> dict[str, Any]:
    """The section of a weighted sum; the default weight is 1."""
    parts: dict[str, Any] = {}
    for name, value in named.items():
        function, weight = value if isinstance(value, tuple) else (value, 1.0)
        parts[name] = {"type": "python", "function": function, "weight": weight}
    return {"type": "sum", "parts": parts}


def _make_plain(value: Any, key: str) -> Any:
    match value:
        case np.generic():
            return _make_plain(value.item(), key)
        case None | bool() | int() | float() | str():
            return value
        case Path():
            return str(value)
        case Mapping():
            return {name: _make_plain(item, f"{key}.{name}") for name, item in value.items()}
        case list() | tuple():
            return [_make_plain(item, key) for item in value]
        case _ if callable(value):
            return user_code.make_reference(value)
        case _:
            raise InputError(
                f"{key} is {value!r}; use numbers, text, lists, mappings, functions or classes"
            )


def _store_rows(rows: RowsValue, key: str) -> str:
    """Returns the file of the rows; writes rows in memory to a file named by their digest."""
    if isinstance(rows, str | Path):
        return str(rows)
    lines = []
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise InputError(
                f"{key}: row {number} is {row!r}; use mappings, such as {{'question': …, "
                f"'answer': …}}"
            )
        try:
            lines.append(json.dumps(dict(row), ensure_ascii=False, allow_nan=False))
        except (TypeError, ValueError) as error:
            raise InputError(f"{key}: row {number} cannot be written as JSON ({error})") from None
    if not lines:
        raise InputError(f"{key} has no rows")
    text = "".join(f"{line}\n" for line in lines).encode()
    file = ROWS / f"{hashlib.sha256(text).hexdigest()[:16]}.jsonl"
    write_changed(file, text)
    return str(file)
