"""Checks of a run against the bounds that its recipe promises: `lockstep check RUN`."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import assert_never

from lockstep.config import Bound

_SHOWN_STEPS = 5


@dataclass(frozen=True)
class BoundResult:
    """One bound against one run.

    Attributes:
        passed: True if the window has enough rows, and their statistic is a finite number within the bound.
        value: Statistic of the rows that are there; None where there are none.
        num_rows: Number of those rows.
        sentence: The bound and the finding, for people.
    """

    bound: Bound
    passed: bool
    value: float | None
    num_rows: int
    sentence: str


def check(bounds: Sequence[Bound], rows: Sequence[Mapping[str, float]]) -> list[BoundResult]:
    """Compares a run's metrics with bounds, one verdict per bound, in order.

    Args:
        bounds: Bounds of the recipe.
        rows: Lines of metrics, each with `step`; a step may have several, and the last that has the metric counts.
    """
    return [_verdict(bound, rows) for bound in bounds]


def _verdict(bound: Bound, rows: Sequence[Mapping[str, float]]) -> BoundResult:
    first, last = bound.steps
    found = {
        int(row["step"]): row[bound.metric] for row in rows if bound.metric in row and first <= row["step"] <= last
    }
    value = _measure(bound, list(found.values())) if found else None
    promise = f"{_window(bound)}, {_range(bound)}"
    if value is None or len(found) < bound.min_rows:
        there = "" if value is None else f"; over what is there, {value:.6g}"
        sentence = f"failed: {promise}: {_absence(bound, rows, sorted(found))}{there}"
        return BoundResult(bound, False, value, len(found), sentence)
    low, high = -math.inf if bound.min is None else bound.min, math.inf if bound.max is None else bound.max
    passed = math.isfinite(value) and low <= value <= high
    measured = f"{value:.6g} ({len(found)} row{'s' * (len(found) > 1)})"
    return BoundResult(bound, passed, value, len(found), f"{'passed' if passed else 'failed'}: {promise}: {measured}")


def _measure(bound: Bound, values: Sequence[float]) -> float:
    """Computes the statistic of a bound over the values of its window; NaN if one of them is NaN."""
    if any(map(math.isnan, values)):
        return math.nan
    match bound.statistic:
        case "mean":
            return sum(values) / len(values)
        case "median":
            return statistics.median(values)
        case "max":
            return max(values)
        case _:
            assert_never(bound.statistic)


def _window(bound: Bound) -> str:
    first, last = bound.steps
    if first == last:
        return f"{bound.metric} at step {last}"
    return f"{bound.statistic} of {bound.metric} over steps {first} to {last}"


def _range(bound: Bound) -> str:
    if bound.min is None:
        return f"at most {bound.max:g}"
    return f"at least {bound.min:g}" if bound.max is None else f"{bound.min:g} to {bound.max:g}"


def _absence(bound: Bound, rows: Sequence[Mapping[str, float]], found: Sequence[int]) -> str:
    """Explains why the window has too few rows."""
    reached = max((int(row["step"]) for row in rows), default=None)
    if reached is None:
        return "not reached, the run has logged no step yet"
    if reached < bound.steps[1]:
        return f"not reached, the run has logged {reached} steps"
    steps = sorted({int(row["step"]) for row in rows if bound.metric in row})
    if not steps:
        close = get_close_matches(bound.metric, {name for row in rows for name in row}, 1)
        return f"the run logs no such metric{f', did you mean {close[0]}?' if close else ''}"
    if not found:
        nearest = min(steps, key=lambda step: abs(step - bound.steps[1]))
        return f"not logged there, nearest is step {nearest}"
    shown = ", ".join(map(str, found[:_SHOWN_STEPS])) + ", …" * (len(found) > _SHOWN_STEPS)
    return f"{len(found)} of {bound.min_rows} rows, at step{'s' * (len(found) > 1)} {shown}"
