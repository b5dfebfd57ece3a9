"""`lockstep check`: what a recipe promises against what a run logged."""

from __future__ import annotations

import math

import pytest

from lockstep.recipe import Bound
from lockstep.report.acceptance import check

ROWS = [
    {"step": 0, "validation/accuracy": 0.2},
    {"step": 40, "train/reward": 0.8},
    {"step": 40, "validation/accuracy": 0.7},
    {"step": 41, "train/reward": 0.9},
]


@pytest.mark.parametrize(
    ("bound", "passed", "sentence"),
    [
        (Bound(metric="train/reward", step=40, min=0.75), True, "passed: train/reward at step 40, at least 0.75: 0.8"),
        (Bound(metric="train/reward", step=40, min=0.8, max=0.8), True, "0.8 to 0.8: 0.8"),
        (Bound(metric="train/reward", step=40, min=0.85), False, "failed: train/reward at step 40, at least 0.85: 0.8"),
        (Bound(metric="train/reward", step=40, max=0.5), False, "at most 0.5: 0.8"),
        (Bound(metric="validation/accuracy", step=40, min=0.65), True, "0.7"),
        (Bound(metric="validation/accuracy", step=0), True, "any number: 0.2"),
        (Bound(metric="train/reward", step=100, min=0.1), False, "not reached, the run has logged 41 steps"),
        (Bound(metric="validation/accuracy", step=41), False, "not logged at this step, nearest is step 40"),
        (Bound(metric="train/rewards", step=40), False, "the run logs no such metric, did you mean train/reward?"),
    ],
)
def test_a_bound_is_within_outside_or_not_there(bound: Bound, passed: bool, sentence: str) -> None:
    (verdict,) = check([bound], ROWS)
    assert (verdict.passed, verdict.bound) == (passed, bound)
    assert sentence in verdict.sentence


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_no_number_is_never_within(value: float) -> None:
    rows = [{"step": 1, "x": value}]
    assert not check([Bound(metric="x", step=1)], rows)[0].passed
    assert not check([Bound(metric="x", step=1, min=0.0)], rows)[0].passed


def test_a_run_that_logged_nothing_has_reached_nothing() -> None:
    (verdict,) = check([Bound(metric="x", step=0)], [])
    assert not verdict.passed
    assert "no step yet" in verdict.sentence
