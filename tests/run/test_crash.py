"""What an error leaves behind that nobody has foreseen."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tiny_recipe import RECIPE, REWARDS

from lockstep.cli import main
from lockstep.core import exit_codes
from lockstep.learners.rank import RankLearner


@pytest.fixture
def tiny(in_tmp: Path) -> None:
    (in_tmp / "rewards.py").write_text(REWARDS)
    (in_tmp / "tiny.yaml").write_text(
        yaml.safe_dump({**RECIPE, "run": {**RECIPE["run"], "save_every": 1}})
    )


def failing(error: Exception, call: int, what: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, but for one call of it."""
    calls = [0]

    def fail(*arguments: Any, **keywords: Any) -> Any:
        calls[0] += 1
        if calls[0] == call:
            raise error
        return what(*arguments, **keywords)

    return fail


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        MemoryError(),
        KeyError("logprob"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_crash_writes_traceback_and_run_resumes_from_newest_checkpoint(
    error: Exception,
    tiny: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(RankLearner, "optim_step", failing(error, 7, RankLearner.optim_step))
        assert main(["train", "tiny.yaml", "run.max_steps=4", "run.folder=run"]) == exit_codes.CRASH
    shown, crash = capsys.readouterr().err, Path("run/crash.txt").read_text()
    for text in (shown, crash):
        assert "Traceback" in text
        assert type(error).__name__ in text
        assert "in optim_step" in text or "in fail" in text
        assert "phase: " in text
        assert "after step " in text
    newest = max(Path("run/checkpoints").glob("step_*"))
    assert "run/crash.txt" in shown
    assert (
        "rerun the command to resume, with --allow-changes if you fixed code that it names" in shown
    )
    assert main(["train", "tiny.yaml", "run.max_steps=4", "run.folder=run"]) == exit_codes.OK
    assert f"resumes after step {int(newest.name.removeprefix('step_'))}" in capsys.readouterr().err


@pytest.mark.full
def test_worker_crash_report_includes_worker_traceback(
    tiny: None, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("broken.py").write_text("def f(prompt, response, answer, row):\n    return 1.0\n")
    Path("rank.py").write_text(WORKER)
    path = os.pathsep.join([str(Path.cwd()), *sys.path])
    done = subprocess.run(
        [sys.executable, "rank.py"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == exit_codes.CRASH
    crash = Path("run/crash.txt").read_text()
    assert "a bug of the worker" in crash
    assert "optim_step of worker" in crash
    assert crash.count("Traceback") >= 2


WORKER = """
import sys
from lockstep.learners.rank import RankLearner

def optim_step(self, lr=None):
    raise IndexError("a bug of the worker")

RankLearner.optim_step = optim_step  # in each process, since each child imports this script

if __name__ == "__main__":
    from lockstep.cli import main
    sys.exit(main(["train", "tiny.yaml", "learner.parallel.dp=2", "run.folder=run"]))
"""
