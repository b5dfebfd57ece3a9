"""The implementation of `lockstep convert`."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.core.errors import InputError
from lockstep_convert.convert import convert_config, detect_library
from lockstep_convert.read import read_config
from lockstep_convert.report import check_recipe, list_lines, render_recipe
from lockstep_convert.table import KeyVerdict, list_libraries


def convert_words(
    words: Sequence[str], library: str | None, algorithm: str | None
) -> tuple[str, str, str]:
    """Converts config files and command-line words.

    Returns:
        The recipe, the report, and one sentence on remaining work (empty if none).

    Raises:
        InputError: The config cannot be read, or its library or algorithm cannot be determined.
    """
    if library is not None and library not in list_libraries():
        raise InputError(f"unknown library {library}: choose one of {', '.join(list_libraries())}")
    config = read_config(words)
    converted = convert_config(config, library or detect_library(config.tree), algorithm)
    resolved, wrong = check_recipe(converted)
    report = "\n".join(list_lines(converted, resolved))
    if wrong:
        return render_recipe(converted), report, f"the recipe does not load yet: {wrong}"
    open_keys: list[str] = []
    for verdict in (KeyVerdict.LOOK, KeyVerdict.UNKNOWN):
        open_keys += [entry.theirs for entry in converted.select_entries(verdict)]
    if open_keys:
        problem = (
            f"the recipe loads; look at {', '.join(dict.fromkeys(open_keys))} before you train"
        )
    else:
        problem = ""
    return render_recipe(converted), report, problem
