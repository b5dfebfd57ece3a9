"""Live notes on rewards: being cut off pays, rewards above the best policy's, and nothing declared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import yaml
from tiny_recipe import RECIPE, REWARDS

from lockstep.algorithms.job import StepResult
from lockstep.config.loading import load
from lockstep.metrics import Metrics
from lockstep.report.log import read_metrics
from lockstep.run.loop import StepEvent
from lockstep.run.reward_alarms import RewardAlarms
from lockstep.run.train import train


def follow(hook: Callable[[StepEvent], None], values: Iterable[Mapping[str, float]]) -> None:
    for step, own in enumerate(values, 1):
        hook(StepEvent(step, StepResult(Metrics(), 0, 0), False, False, dict(own)))


def test_each_is_noted_once() -> None:
    notes: list[str] = []
    share = [0.02 * step for step in range(40)]
    extremes = ("train/reward_min", "train/reward_max")
    names = (*extremes, "train/reward", "train/truncated", "train/reward_cut_off", "train/best_reward")
    constant = {"train/reward_error": 0.1}
    follow(
        RewardAlarms(notes.append),
        (constant | dict(zip(names, (-1.0, 9.0, 1 + own, own, 9.0, 1.0), strict=True)) for own in share),
    )
    assert [note.partition(":")[0] for note in notes] == ["at step 11", "at step 13"]
    assert "rose from " in notes[0]
    assert "above 1, which the task declares" in notes[1]


def test_a_run_pays_what_the_recipe_declares(in_tmp: Path) -> None:
    (in_tmp / "rewards.py").write_text(REWARDS)
    (in_tmp / "recipe.yaml").write_text(yaml.safe_dump(RECIPE | {"run": {"max_steps": 1, "folder": "run"}}))
    (row,) = [row for row in read_metrics(train(load("recipe.yaml", ["reward.cut_off=-2"]))) if "train/reward" in row]
    assert row["train/truncated"] > 0
    assert (row["train/reward_cut_off"], row["train/reward_min"], row["train/cut_off_as_is"]) == (-2.0, -2.0, 0.0)
