"""`lockstep train --supervise`: a run that crashes is continued, and one that does not advance is given up."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from killing import assert_same, final, started, steps_logged, wait_for
from tiny_recipe import RECIPE, REWARDS

from lockstep import exit_codes
from lockstep.cli import main
from lockstep.errors import InputError
from lockstep.fault_policy import POLICY
from lockstep.guarded_imports import TRUSTED, is_trusted
from lockstep.run.checkpoint import Checkpoints
from lockstep.run.supervise import Supervisor

FOUR_STEPS = ("run.max_steps=4", "run.save_every=1")


@pytest.fixture
def tiny(in_tmp: Path) -> Path:
    (in_tmp / "rewards.py").write_text(REWARDS)
    (in_tmp / "tiny.yaml").write_text(yaml.safe_dump(RECIPE))
    return in_tmp


def messages(folder: str | Path) -> list[str]:
    return [json.loads(line)["message"] for line in (Path(folder) / "messages.jsonl").read_text().splitlines()]


def child_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def test_a_run_that_is_killed_is_continued_and_ends_with_the_same_weights(tiny: Path) -> None:
    with started("calm", *FOUR_STEPS) as process:
        assert process.wait() == 0
    with started("stormy", *FOUR_STEPS, "--supervise") as process:
        wait_for(lambda: bool(Checkpoints(Path("stormy/checkpoints"), keep=1).find()), process)
        os.kill(child_of(process.pid), signal.SIGKILL)
        assert process.stderr is not None
        told = process.stderr.read()
        assert process.wait() == 0
    assert_same(final("stormy"), final("calm"))
    assert "supervise: the process was killed by SIGKILL after step" in told
    assert any("killed by SIGKILL" in message for message in messages("stormy"))
    assert messages("stormy")[-1].startswith("supervise: the run was restarted 1 times")


def test_a_signal_to_stop_reaches_the_run_and_ends_both(tiny: Path) -> None:
    with started("run", "run.max_steps=400", "--supervise") as process:
        wait_for(lambda: steps_logged("run") >= 2, process)
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        told = process.stderr.read()
        assert process.wait() == exit_codes.TERMINATED
    assert "SIGTERM was received" in told
    assert "supervise" not in told


class Script:
    """A command that ends, one time after the other, as it is told; `saves` makes a checkpoint's folder."""

    def __init__(self, folder: Path, *lines: str) -> None:
        self.folder, self.waits = folder / "run", list[float]()
        self.folder.mkdir(parents=True)
        (folder / "lines.json").write_text(json.dumps(lines))
        code = (
            "import json, os, pathlib, signal, sys; lines = json.load(open('lines.json')); "
            "json.dump(lines[1:] or lines, open('lines.json', 'w')); exec(lines[0])"
        )
        self.supervisor = Supervisor([sys.executable, "-c", code], self.folder, self.waits.append)


KILL, CRASH, WRONG = "os.kill(os.getpid(), signal.SIGKILL)", "sys.exit(1)", "sys.exit(2)"


def saves(step: int) -> str:
    return f"pathlib.Path('run/checkpoints/step_{step:06d}').mkdir(parents=True); sys.exit(1)"


def test_a_run_that_does_not_advance_is_given_up(in_tmp: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = Script(in_tmp, KILL)
    assert script.supervisor.run() == exit_codes.CRASH
    assert sum(script.waits) == 1 + 5 + 30 + 120 + 120
    told = messages("run")
    assert len(told) == (POLICY["run"].limit or 0) + 1
    assert told[-1] == (
        "supervise: the process was killed by SIGKILL before anything was saved, 5 times in a row; the run is not "
        "restarted"
    )


def test_a_run_that_advances_is_restarted_as_often_as_it_takes(in_tmp: Path) -> None:
    script = Script(in_tmp, *[line for step in range(1, 5) for line in (saves(step), CRASH, CRASH)], "sys.exit(0)")
    assert script.supervisor.run() == exit_codes.OK
    assert sum(script.waits) == (1 + 5 + 30) * 4
    assert "the process ended with 1 after step 4, the newest that is saved" in messages("run")[-2]


def test_a_stop_that_falls_into_a_wait_or_a_start_is_heeded(in_tmp: Path) -> None:
    script = Script(in_tmp, CRASH, "time.sleep(60)")

    def stop(seconds: float) -> None:
        script.waits.append(seconds)
        os.kill(os.getpid(), signal.SIGTERM)

    script.supervisor._sleep = stop
    assert script.supervisor.run() == exit_codes.TERMINATED
    assert script.waits == [0.5]
    starting = Script(in_tmp / "other", "import time; time.sleep(60)")
    real = subprocess.Popen

    def start(*arguments: Any, **options: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return real(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(in_tmp / "other")
        patch.setattr(subprocess, "Popen", start)
        assert starting.supervisor.run() == exit_codes.TERMINATED


@pytest.mark.parametrize(("line", "code"), [(WRONG, 2), ("sys.exit(75)", 75), ("sys.exit(4)", 4)])
def test_what_another_attempt_would_not_mend_is_not_attempted(in_tmp: Path, line: str, code: int) -> None:
    script = Script(in_tmp, line)
    assert script.supervisor.run() == code
    assert not script.waits


def test_lost_checkpoints_are_told_before_logs_are_cut(run: Callable[..., list[dict[str, Any]]]) -> None:
    options = ("run.folder=run", "run.max_steps=4", "run.save_every=1")
    run(*options)
    logged = Path("run/metrics.jsonl").read_bytes()
    Path("run/checkpoints").rename("elsewhere")
    shutil.rmtree("run/final")
    with pytest.raises(
        InputError, match=r"logged 4 steps, .* holds no checkpoint of them; put them back \(is the disk"
    ):
        run(*options)
    assert Path("run/metrics.jsonl").read_bytes() == logged
    Path("elsewhere").rename("run/checkpoints")
    run(*options)
    assert Path("run/final").is_dir()


def test_a_restart_trusts_what_was_trusted_and_not_what_the_file_has_become(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []
    monkeypatch.setenv(TRUSTED, "")
    monkeypatch.setattr(Supervisor, "run", lambda supervisor: commands.append(supervisor._command) or 0)
    (tiny / "mine.py").write_text("")
    assert main(["train", "--supervise", "tiny.yaml", "--trust", "mine.py"]) == 0
    assert "--trust" not in commands[0]
    assert is_trusted(b"")
