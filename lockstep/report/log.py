"""The logs of a run: JSON lines, a step first in each.

    metrics.jsonl   {"step": 3, "train/reward": 0.41, …}; a step may have several lines, training's and validation's
    timings.jsonl   {"step": 3, "generate": 1.2, …}, seconds; apart, so that equal runs have equal metrics; work in
                    the background begins with `beside/`, and is no part of the time of the step
    samples.jsonl   {"step": 3, "prompt": …}, several per step
    messages.jsonl  {"time": …, "step": 3, "message": …}: what the program told the user; never cut

JSON has no word for what is no number: NaN is written as null, the infinities as the texts "Infinity" and "-Infinity",
and `read_metrics` turns them back. Floats are written so that they read back as the same bits.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from lockstep import yaml12
from lockstep.config import old_names
from lockstep.errors import InputError

METRICS, TIMINGS, SAMPLES = "metrics.jsonl", "timings.jsonl", "samples.jsonl"
MESSAGES, LOCK, CRASH = "messages.jsonl", ".lock", "crash.txt"
"""More files of a run's folder: its messages, what the process that writes there holds, and the report of a crash."""


def encode(step: int, row: Mapping[str, Any]) -> bytes:
    """One line of a log, newline included."""
    if "step" in row:
        raise InputError(f"a logged row cannot have a column of its own called step, but has {row['step']!r}")
    return json.dumps({"step": step, **plain(dict(row))}, allow_nan=False).encode() + b"\n"


def plain(value: Any) -> Any:
    """Converts a value to what JSON can express."""
    match value:
        case float() if math.isnan(value):
            return None
        case float() if math.isinf(value):
            return "Infinity" if value > 0 else "-Infinity"
        case dict():
            return {key: plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case _:
            return value


def suggest_metric(metric: str, names: Collection[str]) -> str:
    """Suggests a metric in place of one that is not among those that a run logs."""
    close = get_close_matches(metric, names, 1)
    return f"did you mean {close[0]}?" if close else f"it logs {', '.join(names) or 'nothing yet'}"


def require_run(folder: Path) -> None:
    """Raises ValueError if there is no run in the folder."""
    if not (folder / "recipe.yaml").is_file():
        near = Path("runs") / folder.name
        hint = f"; did you mean {near}?" if (near / "recipe.yaml").is_file() else ""
        raise InputError(f"{folder} is no folder of a run: it holds no recipe.yaml{hint}")


def read_recipe(folder: Path) -> dict[str, Any]:
    """The options of a run's recipe under the names of today; raises InputError where its file holds none."""
    file = folder / "recipe.yaml"
    try:
        recipe = yaml12.parse(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{file}: {error}; restore the file") from error
    if not isinstance(recipe, dict):
        raise InputError(f"{file}: holds no options; restore the file")
    return old_names.translate(recipe)


def lines(path: Path) -> Iterator[tuple[dict[str, Any], int]]:
    """Each whole line of a log with its size in bytes; no file, no lines.

    A line at the end that is not whole is left out: a run is writing it, or was killed while it did.

    Raises:
        ValueError: If another line is no JSON object with a step.
    """
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            yield _row(path, number, line), len(line)


def read_metrics(folder: Path) -> list[dict[str, float]]:
    """The lines of a run's metrics, in order; `step` is one of the numbers. None if nothing has been logged yet."""
    return [numbers(row) for row, _ in lines(folder / METRICS)]


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """A line of metrics or timings with its numbers turned back; `step` is one of them."""
    return {name: _number(value) for name, value in row.items()}


def _row(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError:
        row = None
    if not isinstance(row, dict) or not isinstance(row.get("step"), int):
        raise InputError(f"{path}:{number} is no line of a log, but {line[:60]!r}; restore the file or remove it")
    return row


def _number(value: Any) -> float:
    match value:
        case None:
            return math.nan
        case str():
            return float(value)
        case _:
            return value
