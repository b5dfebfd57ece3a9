"""What `lockstep runs` lists: finished, running, stopped and failed runs, with their scores."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from lockstep.cli import main
from lockstep.run.folder.files import lock_folder
from lockstep.run.folder.logs import RunLogs


def log_run(folder: Path, **metrics: float) -> Path:
    logs = RunLogs(folder)
    (folder / "recipe.yaml").write_text(yaml.safe_dump({"algorithm": "ppo"}))
    for step, grad_norm in ((0, 0.0), (3, 1.0)):
        logs.add_metrics(step, {**metrics, "policy/grad_norm": grad_norm})
    return folder


def test_runs_command_lists_each_run_with_state_step_and_score(
    in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    accuracy = {"validation/accuracy": 0.5, "train/reward": 0.25}
    (log_run(Path("runs/done"), **accuracy) / "final").mkdir()
    (log_run(Path("runs/crashed")) / "crash.txt").write_text("OSError: no disk\n")
    (log_run(Path("runs/broken")) / "metrics.jsonl").write_text("{\n")
    Path("runs/rows").mkdir()
    with lock_folder(log_run(Path("runs/running"), **{"train/reward": 0.25})):
        assert main(["runs"]) == 0
    lines = [line.split(maxsplit=3) for line in capsys.readouterr().out.splitlines()]
    assert {name: rest for name, *rest in lines[1:]} == {
        "runs/done": ["finished", "3", "held-out accuracy 0.500 → 0.500"],
        "runs/crashed": ["failed", "3"],
        "runs/broken": ["unreadable", *lines[3][2:]],
        "runs/running": ["running", "3", "sampled reward 0.250 → 0.250"],
    }
    assert main(["runs", "elsewhere"]) == 2
