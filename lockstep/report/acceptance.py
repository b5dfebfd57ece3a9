"""Whether a run reached what its recipe promises: `lockstep check RUN`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from lockstep.recipe import Bound


@dataclass(frozen=True)
class Verdict:
    """One bound against one run.

    Attributes:
        passed: Whether the metric was logged at the step and lies within the bound.
        sentence: What was asked and what was found, for people.
    """

    bound: Bound
    passed: bool
    sentence: str


def check(bounds: Sequence[Bound], rows: Sequence[Mapping[str, float]]) -> list[Verdict]:
    """Compares a run's metrics with bounds, one verdict per bound, in order.

    Args:
        bounds: What is asked.
        rows: Lines of metrics, each with `step`; a step may have several, and the last that has the metric counts.
    """
    return [_verdict(bound, rows) for bound in bounds]


def _verdict(bound: Bound, rows: Sequence[Mapping[str, float]]) -> Verdict:
    values = [row[bound.metric] for row in rows if row["step"] == bound.step and bound.metric in row]
    asked = f"{bound.metric} at step {bound.step}, {_range(bound)}"
    if not values:
        return Verdict(bound, False, f"failed: {asked}: {_absence(bound, rows)}")
    value = values[-1]
    low, high = -math.inf if bound.min is None else bound.min, math.inf if bound.max is None else bound.max
    passed = math.isfinite(value) and low <= value <= high
    return Verdict(bound, passed, f"{'passed' if passed else 'failed'}: {asked}: {value:.6g}")


def _range(bound: Bound) -> str:
    if bound.min is None and bound.max is None:
        return "any number"
    if bound.min is None:
        return f"at most {bound.max:g}"
    return f"at least {bound.min:g}" if bound.max is None else f"{bound.min:g} to {bound.max:g}"


def _absence(bound: Bound, rows: Sequence[Mapping[str, float]]) -> str:
    """Why there is no value."""
    reached = max((int(row["step"]) for row in rows), default=None)
    if reached is None:
        return "not reached, the run has logged no step yet"
    if reached < bound.step:
        return f"not reached, the run has logged {reached} steps"
    steps = sorted({int(row["step"]) for row in rows if bound.metric in row})
    if steps:
        nearest = min(steps, key=lambda step: abs(step - bound.step))
        return f"not logged at this step, nearest is step {nearest}"
    close = get_close_matches(bound.metric, {name for row in rows for name in row}, 1)
    return f"the run logs no such metric{f', did you mean {close[0]}?' if close else ''}"
