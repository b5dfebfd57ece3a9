"""Checks the arguments of `make published-curve` before anything is installed; needs no package but Python.

python -m benchmarks.curve_words MODEL DATA
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.curve_arms import TEST, TRAIN


def find_mistake(model: str, data: str) -> str | None:
    """The mistake in the folders of model and data, in one sentence; None if there is none."""
    missing = [name for name, folder in (("MODEL", model), ("DATA", data)) if not folder]
    if missing:
        return f"give {' and '.join(missing)}, as in make published-curve MODEL=FOLDER DATA=FOLDER"
    if not (Path(model).expanduser() / "config.json").is_file():
        return f"MODEL is {model!r}, which holds no config.json; name the folder of the model"
    rows = Path(data).expanduser()
    if not ((rows / TRAIN).is_file() and (rows / TEST).is_file()):
        return f"DATA is {data!r}, which has no {TRAIN} and {TEST}; name the folder of GSM8K"
    return None


if __name__ == "__main__":
    sys.exit(find_mistake(*sys.argv[1:]))
