"""`lockstep check`: what a recipe promises against what a run logged."""

from __future__ import annotations

from typing import Any

import pytest

from lockstep.config import Bound
from lockstep.report.acceptance import check

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
            "passed: mean of train/reward over steps 31 to 40, at least 0.7: 0.71 (10 rows)",
        ),
        (
            {"metric": "train/reward", "steps": (40, 40), "min": 0.85},
            False,
            "failed: train/reward at step 40, at least 0.85: 0.8 (1 row)",
        ),
        ({"metric": "train/reward", "steps": (31, 40), "min": 0.71, "max": 0.71}, True, "0.71 to 0.71: 0.71 (10 rows)"),
        ({"metric": "train/reward", "steps": (31, 40), "min": 0.72}, False, "at least 0.72: 0.71"),
        ({"metric": "train/reward", "steps": (1, 4), "statistic": "median", "max": 0.04}, False, "median of"),
        ({"metric": "train/reward", "steps": (1, 40), "statistic": "max", "max": 0.8}, True, "at most 0.8: 0.8 (40"),
        ({"metric": "train/reward", "steps": (1, 41), "statistic": "max", "max": 0.8}, False, "at most 0.8: 0.82 (41"),
        ({"metric": "validation/accuracy", "steps": (0, 40), "rows": 2, "min": 0.4}, True, "0.45 (2 rows)"),
        ({"metric": "validation/accuracy", "steps": (0, 41), "rows": 2, "min": 0.5}, True, "0.6 (3 rows)"),
        (
            {"metric": "validation/accuracy", "steps": (1, 40), "rows": 2, "min": 0.1},
            False,
            "over steps 1 to 40, at least 0.1: 1 of 2 rows, at step 40; over what is there, 0.7",
        ),
        ({"metric": "train/reward", "steps": (0, 40), "min": 0.0}, False, "40 of 41 rows, at steps 1, 2, 3, 4, 5, …"),
        (
            {"metric": "train/reward", "steps": (31, 100), "min": 0.1},
            False,
            "not reached, the run has logged 41 steps; over what is there, 0.72",
        ),
        (
            {"metric": "validation/accuracy", "steps": (30, 39), "min": 0.1},
            False,
            "not logged there, nearest is step 40",
        ),
        ({"metric": "train/rewards", "steps": (40, 40), "min": 0}, False, "no such metric, did you mean train/reward?"),
    ],
)
def test_a_bound_is_kept_broken_or_not_there(options: dict[str, Any], passed: bool, sentence: str) -> None:
    bound = Bound(**options)
    (verdict,) = check([bound], ROWS)
    assert (verdict.passed, verdict.bound) == (passed, bound)
    assert sentence in verdict.sentence


def test_the_last_row_of_a_step_counts() -> None:
    rows = [{"step": 1, "x": 0.0}, {"step": 1, "y": 5.0}, {"step": 1, "x": 1.0}]
    (verdict,) = check([Bound(metric="x", steps=(1, 1), min=1.0)], rows)
    assert (verdict.passed, verdict.value, verdict.num_rows) == (True, 1.0, 1)
