"""Experiments that replace a part of Lockstep: neither prints the result of the other, nor of `lockstep train`."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import altered
from benchmarks.altered import name_runs_apart
from lockstep.config.loading import Loaded, load


def test_an_altered_run_has_its_own_folder_and_shares_its_warm_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Loaded, "identity", Loaded.identity)  # is put back after the test
    plain = load("ppo_arithmetic")
    folder = plain.run_folder
    name_runs_apart("benchmarks.unshifted", ("ppo",))
    other = load("ppo_arithmetic")
    assert other.run_folder != folder
    assert other.warm_start is not None
    assert plain.warm_start is not None
    assert other.warm_start.run_folder == plain.warm_start.run_folder


def test_every_experiment_that_runs_the_command_names_its_runs_apart() -> None:
    root = Path(altered.__file__).parent
    texts = {path.name: path.read_text(encoding="utf-8") for path in root.rglob("*.py")}
    runs = {name for name, text in texts.items() if "cli.main(" in text}
    assert {"unshifted.py", "uncorrected.py", "ungated.py", "observations.py"} <= runs
    assert all("name_runs_apart(" in texts[name] for name in runs)
