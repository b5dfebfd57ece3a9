"""The bounds of the pinned recipes let true replicates pass, and stop runs that are worse."""

from __future__ import annotations

import pytest

from benchmarks.replicates import PUBLISHED_QUESTIONS, SINGLE_STEPS, STEPS, WORLDS, bounds, count_passing, simulate
from lockstep.config.loading import load
from lockstep.report.acceptance import check

RUNS = 100


@pytest.mark.parametrize(
    ("world", "least", "most"),
    [
        ("true replicate", 95, 100),
        ("replicate of the lowest published run (.873)", 85, 100),
        ("lower by .03", 0, 20),
        ("right shift off", 0, 0),
        ("disagreement three times as large", 0, 0),
    ],
)
def test_replicates_pass_and_worse_runs_fail(world: str, least: int, most: int) -> None:
    passing, _ = count_passing(bounds(), WORLDS[world], RUNS)
    assert least <= passing <= most


def test_bounds_on_single_steps_would_fail_most_replicates() -> None:
    passing, _ = count_passing(SINGLE_STEPS, PUBLISHED_QUESTIONS, RUNS)
    assert passing <= 30


def test_a_run_that_was_cut_short_passes_nowhere() -> None:
    metrics = [row for row in simulate(WORLDS["true replicate"], 0) if row["step"] < 100]
    assert len(metrics) < STEPS
    assert all("not reached, the run has logged 99 steps" in sentence for sentence in _failed(metrics))
    assert len(_failed(metrics)) == 3


def test_both_pinned_recipes_have_these_bounds() -> None:
    assert bounds() == load("ppo_qwen2.5_1.5b_gsm8k_1n8g_megatron").training.acceptance


def _failed(metrics: list[dict[str, float]]) -> list[str]:
    return [verdict.sentence for verdict in check(bounds(), metrics) if not verdict.passed]
