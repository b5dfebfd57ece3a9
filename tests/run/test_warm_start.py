"""Runs that begin with the same model, which none of them finds trained."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from workspace import furnish

from lockstep.config.loading import load
from lockstep.run.folder import lock_folder
from lockstep.run.stop import Stopped
from lockstep.run.train import train

pytestmark = pytest.mark.full

LATER = "base: own.yaml\nmodel: {path: null, from_recipe: ./sft.yaml}\n"
WAITS = "another process is training run; later waits for it, and begins with its model\n"


@pytest.fixture
def here(in_tmp: Path) -> Path:
    furnish(in_tmp)
    (in_tmp / "later.yaml").write_text(LATER)
    return in_tmp


@contextlib.contextmanager
def started(*overrides: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "lockstep", "train", "later.yaml", *overrides]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def said(process: subprocess.Popen[str]) -> str:
    """All on standard error, once the process is over; it must have succeeded."""
    _, text = process.communicate(timeout=300)
    assert process.returncode == 0, text
    return text


def until(process: subprocess.Popen[str], line: str) -> None:
    assert process.stderr is not None
    assert line in iter(process.stderr.readline, "")


def test_runs_that_are_started_together_share_their_warm_start(here: Path) -> None:
    with started("run.folder=a", "ppo.clip=0.1") as first, started("run.folder=b", "ppo.clip=0.3") as second:
        texts = said(first), said(second)
    assert sum(WAITS in text or "trained before" in text for text in texts) == 1
    assert all(Path(folder, "final/model.safetensors").is_file() for folder in ("run", "a", "b"))


def test_a_run_waits_for_the_lock_and_trains_what_the_other_left(here: Path) -> None:
    Path("run").mkdir()
    with lock_folder(Path("run")):
        process = started("run.folder=a")
        waiting = process.__enter__()
        until(waiting, WAITS)
        assert not Path("run/final").exists()
    try:
        said(waiting)
    finally:
        process.__exit__(None, None, None)
    assert Path("run/final").is_dir()
    assert Path("a/final").is_dir()


def test_waiting_ends_with_the_time_of_the_run(here: Path) -> None:
    Path("run").mkdir()
    with (
        lock_folder(Path("run")),
        pytest.raises(Stopped, match=r"run\.max_time_s is over and run is not trained") as stopped,
    ):
        train(load("later.yaml", ["run.folder=a", "run.max_time_s=0.1"]))
    assert stopped.value.code == 75
    assert not Path("a").exists()
