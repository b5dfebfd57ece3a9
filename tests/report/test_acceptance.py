"""`lockstep check`: what a recipe promises against what a run logged."""

from __future__ import annotations

import math
from typing import Any

import pytest

from lockstep.config import Bound
from lockstep.report.acceptance import check_bound

ROWS: list[dict[str, float]] = [
    {"step": 0, "validation/accuracy": 0.2},
    *({"step": step, "train/reward": step / 50} for step in range(1, 42)),
    {"step": 40, "validation/accuracy": 0.7},
    {"step": 41, "validation/accuracy": 0.9},
]


@pytest.mark.parametrize(
    ("options", "passed", "sentence"),
    [
        (
            {"metric": "train/reward", "steps": (31, 40), "min": 0.7},
            True,
            "passed: mean of train/reward over steps 31 to 40, in [0.7, inf]: 0.71 (rows: 10)",
        ),
        (
            {"metric": "train/reward", "steps": (31, 40), "min": 0.71, "max": 0.71},
            True,
            "[0.71, 0.71]: 0.71 (rows: 10)",
        ),
        (
            {"metric": "train/reward", "steps": (1, 4), "statistic": "median", "max": 0.04},
            False,
            "median of",
        ),
        (
            {"metric": "train/reward", "steps": (1, 41), "statistic": "max", "max": 0.8},
            False,
            "0.8]: 0.82 (rows: 41)",
        ),
        (
            {"metric": "validation/accuracy", "steps": (0, 41), "rows": 2, "min": 0.5},
            True,
            "0.6 (rows: 3)",
        ),
        (
            {"metric": "validation/accuracy", "steps": (1, 40), "rows": 2, "min": 0.1},
            False,
            "1 of 2 rows logged",
        ),
        (
            {"metric": "train/reward", "steps": (31, 100), "min": 0.1},
            False,
            "the run has reached 41 steps",
        ),
        (
            {"metric": "train/rewards", "steps": (40, 40), "min": 0},
            False,
            "does not log this metric; did you mean train/reward?",
        ),
        ({"metric": "x", "steps": (1, 2), "statistic": "max", "max": 1.0}, False, "nan (rows: 2)"),
    ],
)
def test_bound_check_passes_or_fails_with_its_statistic_or_reason(
    options: dict[str, Any], passed: bool, sentence: str
) -> None:
    rows = [*ROWS, {"step": 1, "x": 0.0}, {"step": 2, "x": math.nan}]
    found = check_bound(Bound(**options), rows)
    assert found[0] == passed
    assert sentence in found[1]


def test_bound_check_uses_last_row_of_a_step() -> None:
    rows = [{"step": 1, "x": 0.0}, {"step": 1, "y": 5.0}, {"step": 1, "x": 1.0}]
    assert check_bound(Bound(metric="x", steps=(1, 1), min=1.0), rows)[0]
