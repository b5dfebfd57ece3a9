"""The grid of a sweep: all combinations of the values of some options. Imports no torch."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from lockstep.core.errors import InputError
from lockstep.system import yaml12

_RANGE = re.compile(r"(-?\d{1,9})\.\.(-?\d{1,9})")
_LONGEST_NAME = 120


@dataclass(frozen=True)
class GridPoint:
    """One value of each option.

    Attributes:
        values: The values, by option.
        overrides: The same values as command-line overrides.
    """

    values: Mapping[str, Any]
    overrides: Sequence[str]

    @property
    def name(self) -> str:
        """Name of its run's folder: the overrides, with a digest if they do not fit a folder name.

        It depends on nothing else, so it stays the same when a sweep gets more values.
        """
        spelled = "_".join(self.overrides)
        name = re.sub(r"[^\w.+=-]+", "-", spelled)[:_LONGEST_NAME]
        digest = hashlib.sha256(json.dumps(self.overrides).encode()).hexdigest()[:10]
        if name == spelled:
            return name
        return f"{name}-{digest}"


def split_words(words: Sequence[str]) -> tuple[list[str], dict[str, list[Any]]]:
    """Splits a command's overrides into single values, unchanged, and lists of values by option.

    `key=0..4` is a range of integers, both ends included; `key=a,b` is a YAML list. Brackets,
    braces and quotes keep one value together.
    """
    fixed: list[str] = []
    grid: dict[str, list[Any]] = {}
    for word in words:
        key, _, text = word.partition("=")
        values = _list_values(text)
        if len(values) < 2:
            fixed.append(word)
        elif key in grid:
            raise InputError(f"{key} is given twice; combine its values, as in {key}=1,2")
        else:
            grid[key] = values
    return fixed, grid


def combine_values(grid: Mapping[str, Sequence[Any]]) -> list[GridPoint]:
    """Every combination of values; the last option varies fastest.

    Raises InputError if there is none.
    """
    combinations = [dict(zip(grid, chosen, strict=True)) for chosen in product(*grid.values())]
    if not grid or not combinations:
        raise InputError(
            "a sweep needs an option with several values, such as seed=0..4 or "
            "policy.lr=1e-6,1e-5 without brackets; for a single run use lockstep train"
        )
    points: list[GridPoint] = []
    for values in combinations:
        overrides: list[str] = []
        for key, value in values.items():
            spelled = value
            if not isinstance(value, str) or yaml12.parse_or_text(value) != value:
                spelled = json.dumps(value, ensure_ascii=False)
            overrides.append(f"{key}={spelled}")
        points.append(GridPoint(values, overrides))
    return points


def _list_values(text: str) -> list[Any]:
    """The values of a range or comma-separated list; none if the text is a single value."""
    ends = _RANGE.fullmatch(text)
    if ends is not None:
        return list(range(int(ends[1]), int(ends[2]) + 1))
    try:
        return yaml12.parse_yaml(f"[{text}]")
    except ValueError:
        return []
