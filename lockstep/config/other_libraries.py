"""Option names of other libraries, for hints; read from `lockstep_convert` if installed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

_TABLES = "lockstep_convert"
_LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
"""Loads every scalar as text, which suffices for hints; in C if available, for speed."""
_SPELLINGS = (("", ""), ("ppo.", "grpo."), ("policy.", "optimizer."))
"""Prefixes in the tables, and sections of other algorithms with the same options."""


def explain_key(path: Sequence[str], known: Collection[str]) -> str | None:
    """Explains a key of another library, found by its full name or its last word.

    Args:
        path: The key as written, with the sections above it.
        known: All options of the recipe.
    """
    key = ".".join(path)
    word = path[-1]
    is_ours = any(option.rpartition(".")[2] == word for option in known)
    names = (key, word, "_".join(path[-2:]))  # such as lora_r for lora.r
    for library, theirs, options, _ in sorted(read_keys(), key=lambda row: row[1] != key):
        meant = theirs in names or (not is_ours and theirs.endswith(f".{word}"))
        option = _find_option(options, known) if meant else None
        if option is not None:
            return (
                f"{theirs} in {library} is {option}=… here; `lockstep convert` converts its files"
            )
    return None


def explain_absence(path: Sequence[str]) -> str | None:
    """Explains why a key of another library has no counterpart, found as in `explain_key`."""
    for library, theirs, _, note in read_keys():
        if note and theirs in (".".join(path), path[-1]):
            return f"{theirs} in {library} has no counterpart here: {note}"
    return None


def _find_option(options: Sequence[str], known: Collection[str]) -> str | None:
    """The first of these options that a recipe has, in any section; None if it has none."""
    for option in options:
        for old, new in _SPELLINGS:
            spelled = new + option.removeprefix(old)
            if option.startswith(old) and spelled in known:
                return spelled
    return None


@cache
def read_keys() -> tuple[tuple[str, str, tuple[str, ...], str], ...]:
    """All keys of all tables as (library, key, options, reason if there are no options).

    Empty without `lockstep_convert`.
    """
    try:
        folder = files(_TABLES) / "tables"
    except ModuleNotFoundError:
        return ()
    tables = sorted(
        (file for file in folder.iterdir() if file.name.endswith(".yaml")),
        key=lambda file: file.name,
    )
    rows: list[tuple[str, str, tuple[str, ...], str]] = []
    for file in tables:
        tree = yaml.load(file.read_text(encoding="utf-8"), Loader=_LOADER)
        for key, cell in tree["keys"].items():
            rows.append((tree["name"], key, tuple(_list_options(cell)), ""))
        for part in ("not_needed", "no_counterpart", "look"):
            for note, keys in tree[part].items():
                named = keys.split() if isinstance(keys, str) else keys
                rows += [(tree["name"], key, (), note) for key in named]
    return tuple(rows)


def _list_options(cell: Any) -> Iterator[str]:
    """The options that a table cell may set; a cell is a name, a list of names, or a mapping."""
    match cell:
        case str():
            yield cell
        case list():
            yield from cell
        case _:
            yield from _list_options(cell.get("to", []))
            yield from cell.get("sets", {})
