"""A run that was killed and went on is one run in every tracker, with every step once, as its logs
have it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from read_trackers import (
    Series,
    logged,
    tensorboard_series,
    tensorboard_texts,
    wandb_records,
    wandb_series,
)

from lockstep.report.log import METRICS, SAMPLES, TIMINGS, read_lines

Run = Callable[..., list[dict[str, Any]]]

ALL = (
    "trackers.tensorboard={}",
    "trackers.wandb.mode=offline",
    "run.max_steps=4",
    "run.save_every=2",
)
DEADLY = '''
import os, signal, time
from pathlib import Path

from rewards import parity

def deadly(prompt, response, answer, row):
    """Once in a lifetime, when step 3 is in the log and the newest checkpoint is that of step 2, kills the run."""
    metrics = Path("run/metrics.jsonl")
    if metrics.exists() and '"step": 3' in metrics.read_text() and not Path("killed").exists():
        while not Path("run/checkpoints/step_000002").exists():
            time.sleep(0.01)
        Path("killed").touch()
        os.kill(os.getppid(), signal.SIGKILL)
    return parity(prompt, response, answer, row)
'''


@pytest.fixture
def killed(run: Run, in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Overrides of a run that a process has begun and was killed in."""
    # the process gets W&B's helper of its own, not this one's
    monkeypatch.delenv("WANDB_SERVICE", raising=False)
    (in_tmp / "deadly.py").write_text(DEADLY)
    overrides = (*ALL, "reward.function=deadly.py:deadly")
    path = os.pathsep.join([str(in_tmp), *sys.path])
    command = [sys.executable, "-m", "lockstep", "train", "tiny.yaml", *overrides]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    monkeypatch.syspath_prepend(in_tmp)
    return overrides


def close(one: Series, other: Series) -> bool:
    """Same steps; values as near as single precision keeps them."""
    same_steps = {name: [step for step, _ in points] for name, points in one.items()}
    assert {name: [step for step, _ in points] for name, points in other.items()} == same_steps
    return all(
        [value for _, value in one[name]]
        == pytest.approx([value for _, value in other[name]], nan_ok=True)
        for name in one
    )


@pytest.mark.full
def test_killed_and_resumed_run_has_each_step_once_in_every_tracker(
    run: Run, killed: tuple[str, ...]
) -> None:
    rows, folder = run(*killed), Path("run")
    seconds = logged([row for row, _ in read_lines(folder / TIMINGS)])
    truth = logged(rows) | {f"timings/{phase}": points for phase, points in seconds.items()}
    for name in ("train/reward", "timings/log"):
        assert [step for step, _ in truth[name]] == [1, 2, 3, 4]

    assert close(tensorboard_series(folder), truth)
    assert close(wandb_series(folder), truth)

    assert tensorboard_texts(folder, "outcome/text_summary") == {4: "finished"}
    assert [record["exit_code"] for record in wandb_records(folder, "exit")] == [0]


def test_trackers_mark_failed_run_as_failed(run: Run, in_tmp: Path) -> None:
    rewards = in_tmp / "rewards.py"
    rewards.write_text(
        rewards.read_text() + "\n\ndef broken(prompt, response, answer, row):\n    return 'x'\n"
    )
    with pytest.raises(ValueError, match="broken"):
        run("reward.function=rewards.py:broken", *ALL)
    assert tensorboard_texts(Path("run"), "outcome/text_summary") == {0: "failed"}
    assert [record["exit_code"] for record in wandb_records(Path("run"), "exit")] == [1]


def test_tracker_added_on_resume_shows_all_earlier_steps(run: Run) -> None:
    run("run.max_steps=2")
    shutil.rmtree("run/final")
    rows = run("run.max_steps=2", "trackers.tensorboard={}")
    shown = tensorboard_series(Path("run"))
    assert close(
        {name: points for name, points in shown.items() if "timings" not in name}, logged(rows)
    )


def test_logs_are_synced_before_checkpoint_manifest(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def noting(descriptor: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    run("run.max_steps=1")
    for log in (METRICS, SAMPLES):
        assert log in synced[: synced.index("manifest.json")]
