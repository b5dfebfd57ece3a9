"""Figures on held-out rows, where a run is summed up: each with its interval, and the best step beside the last."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from lockstep.report.card import card
from lockstep.report.held_out import best, figures, headlines
from lockstep.report.summary import summary
from lockstep.run.folder.logs import Logs
from lockstep.system.command_line import command

ACCURACY = "validation/accuracy"


def validated(step: int, value: float) -> dict[str, float]:
    ends = {f"{ACCURACY}_low": value - 0.1, f"{ACCURACY}_high": value + 0.05}
    return {"step": step, ACCURACY: value, **ends}


ROWS = [validated(0, 0.25), {"step": 5, "train/reward": 0.5}, validated(10, 0.75), validated(20, 0.5)]


def run_folder(folder: Path, rows: Sequence[Mapping[str, float]]) -> Path:
    logs = Logs(folder)
    (folder / "recipe.yaml").write_text(yaml.safe_dump({"algorithm": "ppo"}))
    versions = {"recipe": "tiny", "lockstep": "0", "torch": "0", "transformers": "0"}
    (folder / "environment.json").write_text(json.dumps(versions))
    for row in rows:
        logs.metrics(int(row["step"]), {name: value for name, value in row.items() if name != "step"})
    return folder


def test_the_summary_names_interval_and_best_step_and_whether_its_checkpoint_is_kept(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", ROWS)
    first, second = summary(folder, kept=[15, 20]).splitlines()[:2]
    assert first.split("  ")[0] == "held-out accuracy"
    assert first.endswith("0.250 [0.150, 0.300] → 0.500 [0.400, 0.550]")
    assert second.startswith("  best")
    gone = "whose checkpoint is not kept (run.best keeps the best of those that run.save_every saves)"
    assert second.endswith(f"0.750 [0.650, 0.800] at step 10, {gone}")
    kept = summary(folder, kept=[10, 20])
    exported = command("export", folder, folder / "step-10", "--checkpoint", 10)
    assert f"at step 10, whose checkpoint is kept ({exported})" in kept
    best_last = run_folder(tmp_path / "rising", ROWS[:3])
    assert "0.750 [0.650, 0.800] at step 10, the last" in summary(best_last, kept=[10])
    falling = run_folder(tmp_path / "falling", [validated(0, 0.75), validated(10, 0.5)])
    assert "0.750 [0.650, 0.800] at step 0, before training" in summary(falling, kept=[10])


def test_a_lower_loss_is_the_better_one(tmp_path: Path) -> None:
    rows = [{"step": step, "validation/loss": loss} for step, loss in ((0, 3.0), (4, 1.0), (8, math.nan), (12, 2.0))]
    assert best(figures(rows, "validation/loss"), "lower").step == 4
    assert headlines(rows) == [("held-out loss", "3.000 → 2.000"), ("  best", "1.000 at step 4")]
    assert "1.000 at step 4" in summary(run_folder(tmp_path / "run", rows), kept=[])


def test_the_card_has_intervals_and_the_best_step_up_to_its_own(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", ROWS)
    last, before = (card(folder, "ppo", "base", step) for step in (20, 10))
    assert "| held-out accuracy | 0.250 [0.150, 0.300] → 0.500 [0.400, 0.550] |" in last
    assert "| held-out accuracy | 0.250 [0.150, 0.300] → 0.750 [0.650, 0.800] |" in before
    assert "|   best | 0.750 [0.650, 0.800] at step 10 |" in last
    assert "| sampled reward | 0.500 → 0.500 |" in last
