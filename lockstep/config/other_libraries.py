"""Keys of other libraries in recipes, for hints: read from the tables of `lockstep_convert` if it is installed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

_TABLES = "lockstep_convert"
_LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
"""Reads every scalar as text, which is all that hints need, and in C, since a message should not wait."""
_SPELLINGS = (("ppo.", "grpo."), ("policy.", "optimizer."))
"""Sections that the tables name, and sections of other algorithms that have the same options."""


@dataclass(frozen=True)
class OtherKey:
    """A key of another library.

    Attributes:
        library: Name of the library.
        options: The options that it may stand for.
        sentence: Why it is not an option here.
    """

    library: str
    options: tuple[str, ...]
    sentence: str = ""

    def find_option(self, known: Collection[str]) -> str | None:
        """The option that a recipe has for it; None if it has none."""
        for option in self.options:
            spellings = [option]
            spellings += [new + option.removeprefix(old) for old, new in _SPELLINGS if option.startswith(old)]
            found = next((name for name in spellings if name in known), None)
            if found is not None:
                return found
        return None


def explain(path: Sequence[str], known: Collection[str]) -> str | None:
    """Says what a key means that another library has by this whole name; None if none has.

    Args:
        path: The key as written, with the sections above it.
        known: All options of the recipe.
    """
    key = ".".join(path)
    for row in read_keys().get(key, ()):
        option = row.find_option(known)
        if option is not None and "." in key:
            return f"{key} in {row.library} is {option}=… here, and `lockstep convert` converts its files"
        if option is not None:
            return f"{key} in other libraries is {option}=… here"
    sentences = (row for row in read_keys().get(key, ()) if row.sentence)
    return next((f"{key} is a key of {row.library}: {row.sentence}" for row in sentences), None)


def explain_word(word: str, known: Collection[str]) -> str | None:
    """Says what a key without sections is called here; None if no library has it, or it has no counterpart."""
    found = (row.find_option(known) for row in read_keys().get(word, ()))
    option = next((option for option in found if option is not None), None)
    return None if option is None else f"{word} in other libraries is {option}=… here"


def explain_last_word(word: str, known: Collection[str]) -> str | None:
    """Says what the last part of a key means, if all libraries that have it mean one option by it."""
    rows = (row for key, found in read_keys().items() if key.rsplit(".", 1)[-1] == word for row in found)
    options = {option for row in rows if (option := row.find_option(known)) is not None}
    return f"{word} in other libraries is {options.pop()}=… here" if len(options) == 1 else None


def find_within(value: Any, path: Sequence[str]) -> Sequence[str] | None:
    """The first key in a section that another library has, as an example for messages; None if there is none."""
    if not isinstance(value, dict):
        return None
    for name, inner in value.items():
        within = [*path, str(name)]
        found = find_within(inner, within)
        if found is not None:
            return found
        if any(row.options for row in read_keys().get(".".join(within), ())):
            return within
    return None


@cache
def read_keys() -> Mapping[str, tuple[OtherKey, ...]]:
    """All keys of all tables; none where the package is not installed."""
    try:
        folder = files(_TABLES) / "tables"
    except ModuleNotFoundError:
        return {}
    found: dict[str, tuple[OtherKey, ...]] = {}
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        if file.name.endswith(".yaml"):
            for key, row in _read_table(yaml.load(file.read_text(encoding="utf-8"), Loader=_LOADER)):
                found[key] = (*found.get(key, ()), row)
    return found


def _read_table(tree: Mapping[str, Any]) -> Iterator[tuple[str, OtherKey]]:
    library = tree["name"]
    for key, cell in tree["keys"].items():
        options = tuple(_list_options(cell))
        yield key, OtherKey(library, options, "" if options else cell.get("otherwise", ""))
    for name in ("not_needed", "no_counterpart"):
        for sentence, keys in tree[name].items():
            yield from ((key, OtherKey(library, (), sentence)) for key in keys.split() if "*" not in key)
    for sentence, keys in tree["look"].items():
        yield from ((key, OtherKey(library, (), sentence)) for key in keys if "*" not in key)


def _list_options(cell: Any) -> Iterator[str]:
    """The options that a cell of a table may set: a name, a list of names, or a mapping with them."""
    if isinstance(cell, str):
        yield cell
    elif isinstance(cell, list):
        yield from cell
    else:
        yield from _list_options(cell.get("to", []))
        for values in (cell.get("sets", {}), *cell.get("values", {}).values()):
            yield from values if isinstance(values, dict) else ()
