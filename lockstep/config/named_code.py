"""Files of code that recipes name: told to the user before the import, noted in a run's folder, compared on reading it.

A recipe may come from another user, and so may a run's folder. Imports nothing heavy.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lockstep.config.known_code import require_known_here
from lockstep.config.trust import describe_file
from lockstep.config.user_code import find_file
from lockstep.guarded_imports import digest_content
from lockstep.printable import note_once
from lockstep.whole_files import write_whole
from lockstep.yaml12 import value_at

CODE = "code.json"
"""File in a run's folder: SHA-256 of each file of code that its recipe names, by option and reference."""

_OPTIONS = ("environment.class_name", "data.task.name", "trackers.function")
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


def write_code(folder: Path, code: Mapping[str, Path]) -> None:
    """Notes files of code in a run's folder, by option."""
    noted = {
        name: {"file": str(file.resolve()), "sha256": digest_content(file.read_bytes())} for name, file in code.items()
    }
    write_whole(folder / CODE, [json.dumps(noted, indent=1).encode() + b"\n"])


def say_changed_code(folder: Path, code: Mapping[str, Path]) -> None:
    """Says which files of code are not those with which a run was made.

    Args:
        folder: Folder of the run; it may be older than the note.
        code: The files that would run now, by option.
    """
    noted = _read(folder / CODE)
    if noted is None:
        note_once(f"{folder / CODE} cannot be read, so whether code has changed since {folder} was made is not known")
        return
    for name, file in code.items():
        before = noted.get(name)
        if isinstance(before, dict) and before.get("sha256") != digest_content(file.read_bytes()):
            was = str(before.get("sha256"))[:16]
            note_once(f"{name} has changed since {folder} was made (sha256 was {was}): {describe_file(file)}")


def _read(file: Path) -> dict[str, Any] | None:
    """Returns what was noted: nothing where there is no note, None where it is damaged."""
    if not file.exists():
        return {}
    try:
        noted = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None  # no pipe, which would wait
    except (OSError, ValueError, RecursionError):
        return None
    return noted if isinstance(noted, dict) else None
