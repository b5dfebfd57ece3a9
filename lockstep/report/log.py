"""The logs of a run: JSON lines that begin with the step.

    metrics.jsonl   {"step": 3, "train/reward": 0.41, …}; training and validation have
                    separate lines
    timings.jsonl   {"step": 3, "generate": 1.2, …}, seconds; a separate file, so that equal
                    runs have equal metrics; names of background work begin with `beside/` and do
                    not count toward the time of the step
    samples.jsonl   {"step": 3, "prompt": …}, several per step

JSON has no NaN or infinities: they are written as null and as the texts "Infinity" and "-Infinity",
and `read_metrics` converts them back. Floats read back as the same bits.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import PositiveInt

from lockstep.core.errors import InputError, shorten_text
from lockstep.system import yaml12
from lockstep.system.records import is_file, read_record, refuse_other

METRICS, TIMINGS, SAMPLES = LOGS = "metrics.jsonl", "timings.jsonl", "samples.jsonl"
LOCK = ".lock"
CRASH = "crash.txt"
"""More files of a run's folder: the writer's lock, and the crash report."""
ENVIRONMENT = "environment.json"
"""Versions, machine and threads of the run."""
_MOST_STEPS = 2**53


def encode_line(step: int, row: Mapping[str, Any]) -> bytes:
    """One line of a log, newline included."""
    if "step" in row:
        raise InputError(f"a logged row cannot have a column named step, but has {row['step']!r}")
    return json.dumps({"step": step, **to_json_value(dict(row))}, allow_nan=False).encode() + b"\n"


def to_json_value(value: Any) -> Any:
    """Converts a value to JSON types."""
    match value:
        case float() if math.isnan(value):
            return None
        case float() if math.isinf(value):
            if value > 0:
                return "Infinity"
            return "-Infinity"
        case dict():
            return {key: to_json_value(item) for key, item in value.items()}
        case list() | tuple():
            return list(map(to_json_value, value))
        case _:
            return value


def suggest_metric(metric: str, names: Collection[str]) -> str:
    """Suggests a metric for an unknown metric name."""
    close = get_close_matches(metric, names, 1)
    if close:
        return f"did you mean {close[0]}?"
    return f"logged: {', '.join(names) or 'nothing yet'}"


def require_run(folder: Path) -> None:
    """Raises ValueError if the folder holds no run."""
    if not (folder / "recipe.yaml").is_file():
        near = [Path("runs") / folder.name, *sorted(folder.glob("*"))]
        runs = [run for run in near if (run / "recipe.yaml").is_file()]
        hint = f"; did you mean {runs[0]}?" if runs else ""
        raise InputError(f"{folder} is not a run folder: it has no recipe.yaml{hint}")


def read_recipe(folder: Path) -> dict[str, Any]:
    """The options of a run's recipe; raises InputError if its file holds none."""
    file = folder / "recipe.yaml"
    refuse_other(file)
    try:
        recipe = yaml12.parse_yaml(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{file}: {error}; restore the file") from error
    if not isinstance(recipe, dict):
        raise InputError(f"{file}: contains no options; restore the file")
    if isinstance(recipe.get("run"), dict):
        steps = recipe["run"].get("max_steps", -1)
    else:
        steps = -1
    if not isinstance(steps, int):
        raise InputError(
            f"{file}: run.max_steps is {steps!r}, but must be an integer; restore the file"
        )
    return recipe


def read_lines(path: Path, start: int = 0) -> Iterator[tuple[dict[str, Any], int]]:
    """Yields each complete line of a log with its size in bytes; nothing without a file.

    An incomplete line at the end is left out: a run is writing it, or was killed while it did.

    Args:
        path: The log.
        start: Number of bytes to skip, a number of complete lines.

    Raises:
        InputError: A line is not a JSON object with a step, or the path is a pipe or a folder.
    """
    if not is_file(path):
        return
    with path.open("rb") as file:
        file.seek(start)
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                row = None
            step = row.get("step") if isinstance(row, dict) else None
            if not isinstance(row, dict) or type(step) is not int or not 0 <= step < _MOST_STEPS:
                raise InputError(
                    f"{path}:{number} is not a valid log line: {line[:60]!r}; restore the file or "
                    "remove it"
                )
            yield row, len(line)


def read_metrics(folder: Path) -> list[dict[str, float]]:
    """The lines of a run's metrics, in order; `step` is one of the numbers.

    Empty if nothing has been logged yet.
    """
    return list(read_numbers(folder / METRICS))


def read_numbers(path: Path) -> Iterator[dict[str, float]]:
    """Yields decoded lines of a log of metrics or timings; `step` is one of the numbers.

    Raises:
        InputError: See `read_lines`; or a value is not a number.
    """
    for number, (row, _) in enumerate(read_lines(path), 1):
        yield decode_numbers(f"{path}:{number}", row)


def decode_numbers(where: str, row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a line; raises InputError that names `where` if a value is not a number."""
    return {name: _parse_number(where, name, value) for name, value in row.items()}


def read_environment(folder: Path) -> dict[str, Any]:
    """The machine that a run recorded; empty before the run has started.

    Raises:
        InputError: The file is invalid.
    """
    file = folder / ENVIRONMENT
    cure = "restore the file, or remove it: the next start of the run rewrites it"
    if not is_file(file):
        return {}
    read_record(file, _NotedMachine, cure)
    return read_record(file, dict[str, Any], cure)


@dataclass(frozen=True)
class _NotedMachine:
    """The recorded fields that readers use."""

    threads: PositiveInt = 1
    recipe: str = ""


def _parse_number(where: str, name: str, value: Any) -> float:
    match value:
        case None:
            return math.nan
        case "Infinity" | "-Infinity":
            return float(value)
        case int() | float() if abs(value) <= sys.float_info.max:
            return value
        case _:
            raise InputError(
                f"{where} has {shorten_text(repr(value))} for {shorten_text(repr(name))}, which is "
                "not a number; restore the file or remove it"
            )
