"""A reward that the recipe declares for responses that are cut off."""

from __future__ import annotations

from pathlib import Path

import yaml
from tiny_recipe import RECIPE, REWARDS
from training import train_rows


def test_truncated_responses_get_declared_cut_off_reward(in_tmp: Path) -> None:
    (in_tmp / "rewards.py").write_text(REWARDS)
    (in_tmp / "recipe.yaml").write_text(
        yaml.safe_dump(RECIPE | {"run": {"max_steps": 1, "folder": "run"}})
    )
    (row,) = [
        row for row in train_rows("recipe.yaml", "reward.cut_off=-2") if "train/reward" in row
    ]
    assert row["train/truncated"] > 0
    assert (row["train/reward_cut_off"], row["train/reward_min"], row["train/cut_off_as_is"]) == (
        -2.0,
        -2.0,
        0.0,
    )
