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
    for (*above, last), value in options.items():
        label = above[-1] if last == "path" else last
        safe = re.sub(r"[^\w.+-]+", "-", Path(str(value)).name, flags=re.ASCII).strip("-")
        more = f"_{label}={safe[:_LONGEST_VALUE]}"
        # null, or the rows or the model of another run
        is_plain = value is None or str(value).startswith("runs/")
        if not is_plain and len(recipe + name + more) <= _LONGEST_NAME:
            name += more
    return _RUNS / "-".join(filter(None, (recipe, name[1:], short)))
