"""The report of a run that is under way: its state, and the page that is rewritten until it ends."""

from __future__ import annotations

import time
from pathlib import Path
from threading import Thread

import pytest
import yaml

from lockstep.report import html
from lockstep.report.overview import overview
from lockstep.run.folder.files import lock_folder
from lockstep.run.folder.logs import Logs


def begin(folder: Path) -> Logs:
    """A run's folder after its first step."""
    logs = Logs(folder)
    (folder / "recipe.yaml").write_text(yaml.safe_dump({"algorithm": "ppo", "run": {"max_steps": 9}}))
    logs.metrics(1, {"train/reward": 0.1})
    logs.timings(1, {"generate": 2.0, "policy": 1.0, "beside/generate": 50.0})
    return logs


def test_a_run_is_shown_in_its_states(tmp_path: Path) -> None:
    begin(tmp_path)
    assert overview(tmp_path)["state"] == "not finished"
    with lock_folder(tmp_path):
        shown = overview(tmp_path)
        assert (shown["state"], shown["step"], shown["planned"]) == ("running", 1, 9)
    assert overview(tmp_path)["state"] == "stopped"
    crash = "time  now\n\nTraceback (most recent call last):\n  File x\nOSError: no disk\nphase: save\n"
    (tmp_path / "crash.txt").write_text(crash)
    assert (overview(tmp_path)["state"], overview(tmp_path)["about_state"]) == ("died", "OSError: no disk")
    (tmp_path / "final").mkdir()
    assert overview(tmp_path)["state"] == "finished"


def test_the_page_is_rewritten_until_the_run_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "_FOLLOW_S", 0.02)
    logs, page = begin(tmp_path), tmp_path / "report.html"
    follower = Thread(target=html.follow_runs, args=([tmp_path], page))
    with lock_folder(tmp_path):
        follower.start()
        for step in range(2, 1000):
            logs.metrics(step, {"train/reward": 0.2})
            time.sleep(0.05)
            if page.exists():
                break
        assert page.exists()
        assert follower.is_alive()
    follower.join(60)
    assert not follower.is_alive()
