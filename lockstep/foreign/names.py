"""Names that keys of other libraries have here, for messages about keys that a recipe does not have."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache

from lockstep.foreign.libraries import LIBRARIES
from lockstep.foreign.words import Json, Key, Library, find_option, flatten


def explain(path: Sequence[str], options: Collection[str]) -> str | None:
    """Says what a key means that another library has by this whole name; None where none has.

    Args:
        path: The key as it was written, with what stands above it.
        options: All options of the recipe.
    """
    key = ".".join(path)
    rows = _find(key)
    ours = {option: library for library, row in rows if (option := find_option(row, options)) is not None}
    if ours:
        option, library = next(iter(ours.items()))
        if "." not in key:
            return f"what other libraries call {key} is {option}=… here"
        converts = ", and `lockstep convert` converts its files" if library.option else ""
        return f"what {library.name} calls {key} is {option}=… here{converts}"
    reasons = [(library, row.differs or row.note) for library, row in rows if not row.ours]
    return f"{key} is a key of {reasons[0][0].name}: {reasons[0][1]}" if reasons else None


def explain_word(word: str, options: Collection[str]) -> str | None:
    """Says what a whole key of another library is called here; None where the word is none, or has no counterpart."""
    found = [option for _, row in _find(word) if (option := find_option(row, options)) is not None]
    return f"what other libraries call {word} is {found[0]}=… here" if found else None


def explain_end(word: str, options: Collection[str]) -> str | None:
    """Says what the last part of a key means, where all libraries that have it mean one option by it."""
    ends = {option for row in _by_end().get(word, ()) if (option := find_option(row, options)) is not None}
    return f"what other libraries call {word} is {ends.pop()}=… here" if len(ends) == 1 else None


def find_within(value: Json, path: Sequence[str]) -> Sequence[str] | None:
    """The first key in a section that another library has, as an example for messages; None where there is none."""
    if not isinstance(value, dict) or not value:
        return None
    within = (f"{'.'.join(path)}.{key}" for key, _ in flatten(value))
    return next((key.split(".") for key in within if any(row.ours for _, row in _find(key))), None)


def _find(key: str) -> list[tuple[Library, Key]]:
    """The rows of a key, with and without what a page leaves off its name."""
    found = ((library, library.by_key.get(key) or library.by_key.get(library.prefix + key)) for library in LIBRARIES)
    return [(library, row) for library, row in found if row is not None]


@cache
def _by_end() -> dict[str, list[Key]]:
    ends: dict[str, list[Key]] = {}
    for row in (row for library in LIBRARIES for row in library.by_key.values() if row.ours):
        ends.setdefault(row.theirs.rsplit(".", 1)[-1], []).append(row)
    return ends
