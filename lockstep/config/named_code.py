"""Files of code that recipes name, which the user is told before they are imported.

A recipe may come from another user, and so may a run's folder. Imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lockstep.config.known_code import require_known_here
from lockstep.config.trust import describe_file
from lockstep.config.user_code import find_file
from lockstep.printable import note_once
from lockstep.yaml12 import value_at

_OPTIONS = ("environment.class_name", "data.task.name")
_REWARDS = ("reward", "validation_reward", "verifier")
_OWN = Path(__file__).parents[1]


def name_code(option: str, reference: str) -> None:
    """Tells the user, before an import, which file an option runs; once per content, and not for Lockstep's own.

    Raises:
        InputError: A run's recipe names it, and it is neither known nor trusted (`lockstep.config.known_code`).
    """
    require_known_here(option, reference)
    file = find_file(reference)
    if file is not None and not file.resolve().is_relative_to(_OWN):
        note_once(f"{option} {reference} runs {describe_file(file)}")


def find_code(options: Mapping[str, Any]) -> dict[str, Path]:
    """The files of functions and classes that a recipe's options name, by option; see `registry` for its algorithm."""
    functions = (key for name in _REWARDS for key in _list_functions(options, name))
    found = {option: find_file(str(value_at(options, option.split(".")))) for option in (*functions, *_OPTIONS)}
    return {option: file for option, file in found.items() if file is not None}


def _list_functions(options: Mapping[str, Any], reward: str) -> list[str]:
    """The options of a reward that may name a function: its own, and that of each part of a sum."""
    parts = value_at(options, (reward, "parts"))
    names = parts if isinstance(parts, dict) else {}
    return [f"{reward}.function", *(f"{reward}.parts.{name}.function" for name in names)]
