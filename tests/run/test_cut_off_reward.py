"""A reward that the recipe declares for responses that are cut off."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from training import step_rows


def test_truncated_responses_get_declared_cut_off_reward(
    run: Callable[..., list[dict[str, Any]]],
) -> None:
    rows = run("run.max_steps=1", "reward.cut_off=-2")
    (row,) = step_rows(rows)
    assert row["train/truncated"] > 0
    assert row["train/reward_cut_off"] == row["train/reward_min"] == -2.0
    assert row["train/cut_off_as_is"] == 0.0
