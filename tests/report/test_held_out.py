"""Figures on held-out rows, where a run is summed up: each with its interval, and the best step
beside the last.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from lockstep.report.card import render_card
from lockstep.report.held_out import find_best, list_figures, list_headlines
from lockstep.report.summary import summarize_run
from lockstep.run.folder.logs import RunLogs

ACCURACY = "validation/accuracy"


def validated(step: int, value: float) -> dict[str, float]:
    ends = {f"{ACCURACY}_low": value - 0.1, f"{ACCURACY}_high": value + 0.05}
    return {"step": step, ACCURACY: value, **ends}


ROWS = [
    validated(0, 0.25),
    {"step": 5, "train/reward": 0.5},
    validated(10, 0.75),
    validated(20, 0.5),
]


def run_folder(folder: Path, rows: Sequence[Mapping[str, float]]) -> Path:
    logs = RunLogs(folder)
    (folder / "recipe.yaml").write_text(yaml.safe_dump({"algorithm": "ppo"}))
    versions = {"recipe": "tiny", "lockstep": "0", "torch": "0", "transformers": "0"}
    (folder / "environment.json").write_text(json.dumps(versions))
    for row in rows:
        logs.add_metrics(
            int(row["step"]), {name: value for name, value in row.items() if name != "step"}
        )
    return folder


def test_summary_shows_held_out_interval_and_best_step(tmp_path: Path) -> None:
    first, second = summarize_run(run_folder(tmp_path / "run", ROWS)).splitlines()[:2]
    assert first.split("  ")[0] == "held-out accuracy"
    assert first.endswith("0.250 [0.150, 0.300] → 0.500 [0.400, 0.550]")
    assert second.startswith("  best")
    assert second.endswith("0.750 [0.650, 0.800] at step 10")


def test_best_step_of_held_out_loss_has_lowest_value(tmp_path: Path) -> None:
    rows = [
        {"step": step, "validation/loss": loss}
        for step, loss in ((0, 3.0), (4, 1.0), (8, math.nan), (12, 2.0))
    ]
    assert find_best(list_figures(rows, "validation/loss"), "lower").step == 4
    assert list_headlines(rows) == [
        ("held-out loss", "3.000 → 2.000"),
        ("  best", "1.000 at step 4"),
    ]
    assert "1.000 at step 4" in summarize_run(run_folder(tmp_path / "run", rows))


def test_model_card_shows_intervals_and_best_step_up_to_its_checkpoint(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", ROWS)
    last, before = (render_card(folder, "ppo", "base", step) for step in (20, 10))
    assert "| held-out accuracy | 0.250 [0.150, 0.300] → 0.500 [0.400, 0.550] |" in last
    assert "| held-out accuracy | 0.250 [0.150, 0.300] → 0.750 [0.650, 0.800] |" in before
    assert "|   best | 0.750 [0.650, 0.800] at step 10 |" in last
    assert "| sampled reward | 0.500 → 0.500 |" in last
