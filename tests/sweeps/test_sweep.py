"""`lockstep sweep`: the same bits as single runs, resumed, growing, failing, stopped; and the same
from Python.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from forked_commands import Ended, run_command
from tiny_recipe import RECIPE, REWARDS

import lockstep
from lockstep.core import exit_codes
from lockstep.core.errors import InputError
from lockstep.run.checkpoint.checkpoints import CheckpointStore
from lockstep.sweeps.plan import plan_words
from lockstep.sweeps.sweep import share_cores

GUIDE = Path(__file__).parents[2] / "docs/guides/sweeps.md"


@pytest.fixture
def folder(in_tmp: Path) -> Path:
    (in_tmp / "rewards.py").write_text(REWARDS)
    (in_tmp / "own.yaml").write_text(yaml.safe_dump(RECIPE))
    return in_tmp


def sweep(folder: Path, words: str) -> Ended:
    return run_command(folder, f"sweep own.yaml {words} --name s", silence_s=300, longest_s=600)


def weights(run: Path) -> bytes:
    return (run / "final/model.safetensors").read_bytes()


def test_sweep_runs_equal_single_runs_and_sweep_can_be_resumed_and_extended(folder: Path) -> None:
    ended = sweep(folder, "seed=0..1 policy.lr=0.001 --jobs 2")
    assert ended.code == exit_codes.OK, ended.said
    assert "all  2 of 2" in ended.said
    assert (
        run_command(folder, "train own.yaml seed=1 policy.lr=0.001 run=single").code
        == exit_codes.OK
    )
    run = folder / "sweeps/s/seed=1"
    made = weights(run)
    assert made == weights(folder / "single")

    found = lockstep.sweep("own.yaml", {"seed": range(2)}, policy={"lr": 0.001}, name="s")
    assert [(row["run"], row["seed"], row["state"]) for row in found.table] == [
        ("seed=0", 0, "finished"),
        ("seed=1", 1, "finished"),
    ]
    (reward,) = (row for row in found.groups if row["metric"] == "train/reward")
    values = [row["train/reward"] for row in found.table]
    assert reward["mean"] == pytest.approx(sum(values) / 2)
    assert reward["high"] - reward["mean"] == pytest.approx(
        12.7062 * abs(values[0] - values[1]) / 2, rel=1e-4
    )

    shutil.rmtree(run / "final")  # as if it had been killed before its end
    more = sweep(folder, "seed=0..2 policy.lr=0.001")
    assert more.code == exit_codes.OK, more.said
    assert [seed for seed in range(3) if f"seed={seed} starts" in more.said] == [1, 2]
    assert weights(run) == made
    assert (folder / "sweeps/s/report.html").is_file()
    changed = sweep(folder, "seed=0..1 policy.lr=0.002")
    assert changed.code == exit_codes.INPUT
    assert "seed=2 is no longer one of its runs" in changed.said
    assert "seed=0: recipe.policy.lr was 0.001, is 0.002" in changed.said


@pytest.mark.full
def test_a_run_that_fails_does_not_end_the_others(folder: Path) -> None:
    ended = sweep(folder, "policy.lr=1.0e+30,0.001 run.max_steps=6 --jobs 1")
    assert ended.code == exit_codes.CRASH, ended.said
    assert "policy.lr=1e+30 failed; sweeps/s/policy.lr=1e+30/sweep.log" in ended.said
    assert "lower the learning rate" in (folder / "sweeps/s/policy.lr=1e+30/sweep.log").read_text()
    assert "policy.lr=0.001 finished" in ended.said


def test_every_combination_is_checked_before_any_starts(folder: Path) -> None:
    with pytest.raises(
        InputError,
        match=r"(?s)^seed=0 policy\.lr=-1 is invalid, so no run was started:.*policy\.lr",
    ):
        plan_words("own.yaml", ["seed=0,1", "policy.lr=0.1,-1"], None)
    for words in (["run=folder"], ["run={folder: a, max_steps: 3}"], ["run.folder=a,b"]):
        with pytest.raises(InputError, match=r"^run\.folder: .*--name"):
            plan_words("own.yaml", ["seed=0,1", *words], None)
    with pytest.raises(InputError, match=r"^run\.folder: .*--name"):
        lockstep.sweep("own.yaml", {"seed": range(2)}, run={"folder": "a"})
    assert plan_words("own.yaml", ["seed=0,1", "run={max_steps: 3}"], None).folder == Path(
        "sweeps/own-seed"
    )
    with pytest.raises(InputError, match=r"^policy\.lr=1 and policy\.lr=1\.0 have equal options"):
        plan_words("own.yaml", ["policy.lr=1,0.002,1.0"], "s")
    with pytest.raises(InputError, match="set it to at least 1"):
        lockstep.sweep("own.yaml", {"seed": range(2)}, jobs=0)
    with pytest.raises(InputError, match=r"reward\.function is a Python object of this program"):
        lockstep.sweep(
            "own.yaml", {"seed": range(2)}, reward=lambda prompt, response, answer, row: 1.0
        )


@pytest.mark.full
def test_ctrl_c_lets_each_run_save_and_the_same_command_resumes(folder: Path) -> None:
    options = "seed=0..2 policy.lr=0.001 run.max_steps=100000 --jobs 2 --name s"
    command = [sys.executable, "-m", "lockstep", "sweep", "own.yaml", *options.split()]
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
    begun = [folder / f"sweeps/s/seed={seed}/metrics.jsonl" for seed in (0, 1)]
    while not all(file.is_file() and file.read_bytes().count(b"\n") for file in begun):
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    said = process.communicate()[1]
    assert process.returncode == exit_codes.INTERRUPTED, said
    assert "seed=0 stopped" in said
    assert "rerun the command to resume" in said
    assert "seed=2 starts" not in said
    assert all(
        CheckpointStore(file.parent / "checkpoints", keep=1).list_checkpoints() for file in begun
    )

    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
    sizes = [file.stat().st_size for file in begun]
    while any(file.stat().st_size <= size for file, size in zip(begun, sizes, strict=True)):
        time.sleep(0.1)
    process.kill()
    process.communicate()
    while not all(
        "SIGTERM was received" in (file.parent / "sweep.log").read_text() for file in begun
    ):
        time.sleep(0.1)  # runs end with their sweep


@pytest.mark.full
def test_sweep_runs_with_same_warm_start_wait_for_first_run(folder: Path) -> None:
    (folder / "after.yaml").write_text(
        yaml.safe_dump(RECIPE | {"model": {"from_recipe": "own.yaml"}})
    )
    ended = run_command(
        folder, "sweep after.yaml policy.lr=0.001,0.002 --jobs 2", silence_s=300, longest_s=600
    )
    assert ended.code == exit_codes.OK, ended.said
    events = re.findall(r"policy\.lr=\S+ (starts|finished);", ended.said)
    assert events == ["starts", "finished"] * 2  # either may be first


@pytest.mark.full
@pytest.mark.usefixtures("in_tmp")
def test_sweeps_guide_code_finishes_two_runs_and_prints_group_rows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    [block] = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    exec(block, names)
    found = names["found"]
    assert [row["state"] for row in found.table] == ["finished"] * 2
    assert len(found.runs) == 2
    assert "all train/" in capsys.readouterr().out


def test_sweep_jobs_share_cores_with_1_to_8_threads_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstep.sweeps.sweep.read_given_threads", lambda: None)
    monkeypatch.setattr("lockstep.sweeps.sweep.count_cores", lambda: 64)
    assert [share_cores(jobs) for jobs in (1, 16, 100)] == [8, 4, 1]
