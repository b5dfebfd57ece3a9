"""Checks a run against its recipe's acceptance bounds: `lockstep check RUN`."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import assert_never

from lockstep.config import Bound
from lockstep.report.log import suggest_metric


def check_bound(bound: Bound, rows: Sequence[Mapping[str, float]]) -> tuple[bool, str]:
    """Compares a run's metrics with a bound.

    Returns whether the bound holds, and a sentence about it. It holds if the window has enough rows
    and their statistic is finite and within the bound.

    Args:
        bound: A bound of the recipe.
        rows: Lines of metrics, each with `step`; of several lines for a step, the last one with the
            metric counts.
    """
    first, last = bound.steps
    found: dict[int, float] = {}
    for row in rows:
        if bound.metric in row and first <= row["step"] <= last:
            found[int(row["step"])] = row[bound.metric]
    low = -math.inf if bound.min is None else bound.min
    high = math.inf if bound.max is None else bound.max
    window = (
        f"{bound.statistic} of {bound.metric} over steps {first} to {last}, in [{low:g}, {high:g}]"
    )
    if len(found) < bound.min_rows:
        logged = set[str]().union(*rows)
        if bound.metric in logged:
            reached = max(int(row["step"]) for row in rows)
            why = (
                f"{len(found)} of {bound.min_rows} rows logged; the run has reached {reached} steps"
            )
        else:
            why = f"the run does not log this metric; {suggest_metric(bound.metric, logged)}"
        return False, f"failed: {window}: {why}"
    if any(map(math.isnan, found.values())):
        value = math.nan
    else:
        value = _measure_statistic(bound, list(found.values()))
    passed = math.isfinite(value) and low <= value <= high
    return passed, f"{'passed' if passed else 'failed'}: {window}: {value:.6g} (rows: {len(found)})"


def _measure_statistic(bound: Bound, values: Sequence[float]) -> float:
    match bound.statistic:
        case "mean":
            return sum(values) / len(values)
        case "median":
            return statistics.median(values)
        case "max":
            return max(values)
        case _:
            assert_never(bound.statistic)
