"""Names of runs: the recipe, the options set over it, and a short hash."""

from __future__ import annotations

import re
from collections.abc import Mapping
from glob import escape
from pathlib import Path

_RUNS = Path("runs")
_LONGEST_VALUE = 24
_LONGEST_NAME = 60
_HASH_LENGTH = 6


def find_run_folder(recipe: str, options: Mapping[tuple[str, ...], object], digest: str) -> Path:
    """The folder of a run, existing or new: `runs/<recipe>-<options>-<hash>`.

    The same options, written differently, may give another name, so an existing folder is found by
    its recipe and hash. Options that do not fit are left out.

    Args:
        recipe: Name of the recipe.
        options: The options set over the recipe's files, in the order in which they are named.
        digest: Digest of all options.
    """
    short = digest[:_HASH_LENGTH]
    for found in _RUNS.glob(f"{escape(recipe)}-*{short}"):
        return found
    name = ""
    for keys, value in options.items():
        label = keys[-2:][0] if keys[-1] == "path" else keys[-1]
        text = f"_{label}={Path(str(value)).name[:_LONGEST_VALUE]}"
        more = re.sub(r"[^\w.+=-]+", "-", text, flags=re.ASCII).strip("-")
        # null, or the rows or the model of another run
        is_plain = value is None or str(value).startswith("runs/")
        if not is_plain and len(recipe + name + more) <= _LONGEST_NAME:
            name += more
    return _RUNS / "-".join(filter(None, (recipe, name[1:], short)))
