"""`lockstep sweep`: the same bits as single runs, resumed, growing, failing, stopped; and the same from Python."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from forked_commands import Ended, run_command
from tiny_recipe import RECIPE, REWARDS

import lockstep
from lockstep import exit_codes
from lockstep.cluster.placement import Devices, Placement, Processes
from lockstep.config.loading import Loaded
from lockstep.errors import InputError
from lockstep.run.stop import Stop
from lockstep.sweeps import processes
from lockstep.sweeps.plan import SweepPlan, plan_words
from lockstep.sweeps.room import Room, divide_gpus, make_room, share_cores
from lockstep.sweeps.show import SweepView
from lockstep.sweeps.sweep import Runner, SweepJob

SEEDS = "seed=0..1 policy.lr=0.001,0.002"


@pytest.fixture
def folder(in_tmp: Path) -> Path:
    (in_tmp / "rewards.py").write_text(REWARDS)
    (in_tmp / "own.yaml").write_text(yaml.safe_dump(RECIPE))
    return in_tmp


def sweep(folder: Path, words: str) -> Ended:
    return run_command(folder, f"sweep own.yaml {words} --name s", silence_s=60)


def weights(run: Path) -> bytes:
    return (run / "final/model.safetensors").read_bytes()


def test_runs_are_those_of_single_commands_and_a_sweep_is_resumed_and_grows(folder: Path) -> None:
    ended = sweep(folder, "seed=0..1 policy.lr=0.001 --jobs 2")
    assert ended.code == exit_codes.OK, ended.said
    assert "all  2 of 2" in ended.said
    assert run_command(folder, "train own.yaml seed=1 policy.lr=0.001 run=single").code == exit_codes.OK
    run = folder / "sweeps/s/seed=1"
    made = weights(run)
    assert made == weights(folder / "single")

    found = lockstep.sweep("own.yaml", {"seed": range(2)}, policy={"lr": 0.001}, name="s")
    assert found.is_finished
    assert [(row["run"], row["seed"], row["state"]) for row in found.table] == [
        ("seed=0", 0, "finished"),
        ("seed=1", 1, "finished"),
    ]
    (reward,) = (row for row in found.groups if row["metric"] == "train/reward")
    values = [row["train/reward"] for row in found.table]
    assert reward["mean"] == pytest.approx(sum(values) / 2)
    assert reward["high"] - reward["mean"] == pytest.approx(12.7062 * abs(values[0] - values[1]) / 2, rel=1e-4)

    shutil.rmtree(run / "final")  # as if it had been killed before its end
    more = sweep(folder, "seed=0..2 policy.lr=0.001")
    assert more.code == exit_codes.OK, more.said
    for word, seeds in {"begins": [2], "resumes": [1]}.items():
        assert [seed for seed in range(3) if f"seed={seed} {word}" in more.said] == seeds
    assert weights(run) == made
    assert (folder / "sweeps/s/report.html").is_file()
    changed = sweep(folder, "seed=0..1 policy.lr=0.002")
    assert changed.code == exit_codes.INPUT
    assert "seed=2 is no run of it any more" in changed.said
    assert "seed=0: recipe.policy.lr was 0.001, is 0.002" in changed.said


def test_a_run_that_fails_does_not_end_the_others(folder: Path) -> None:
    ended = sweep(folder, "policy.lr=1.0e+30,0.001 run.max_steps=6 --jobs 1")
    assert ended.code == exit_codes.CRASH, ended.said
    assert "policy.lr=1.0e+30 failed, 0 of 2 are finished: step" in ended.said
    assert "lower the learning rate" in ended.said
    assert "policy.lr=0.001 finished, 1 of 2 are finished" in ended.said


def test_every_combination_is_checked_before_any_starts(folder: Path) -> None:
    with pytest.raises(InputError, match=r"(?s)^seed=0 policy\.lr=-1 is refused, so nothing is started:.*policy\.lr"):
        plan_words("own.yaml", ["seed=0,1", "policy.lr=0.1,-1"], None)
    for words in (["run=folder"], ["run.folder=a"], ["run={folder: a, max_steps: 3}"], ["run.folder=a,b"], ["run=a,b"]):
        with pytest.raises(InputError, match=r"^run\.folder: .*--name"):
            plan_words("own.yaml", ["seed=0,1", *words], None)
    for values, run in (({}, {"folder": "a"}), ({}, "a"), ({"run.folder": ["a", "b"]}, {})):
        with pytest.raises(InputError, match=r"^run\.folder: .*--name"):
            lockstep.sweep("own.yaml", {"seed": range(2), **values}, run=run)
    assert plan_words("own.yaml", ["seed=0,1", "run={max_steps: 3}"], None).runs
    with pytest.raises(InputError, match=r"^policy\.lr=1e-3 and policy\.lr=0\.001 are one run"):
        plan_words("own.yaml", ["policy.lr=1e-3,0.002,0.001"], "s")
    with pytest.raises(InputError, match="at least one run at a time"):
        lockstep.sweep("own.yaml", {"seed": range(2)}, jobs=0)
    one, other = (plan_words("own.yaml", [f"seed=0..{last}"], None).folder for last in (1, 2))
    assert one != other  # without a name, another sweep is another folder


def test_a_sweep_of_other_data_model_or_code_is_another(folder: Path) -> None:
    (folder / "rows.jsonl").write_text('{"question": "1+1=", "answer": "2"}\n')
    words = ["data.train=rows.jsonl", "seed=0..1"]
    plan_words("own.yaml", words, "s").write(1)
    assert plan_words("own.yaml", words, "s").require_same() is not None
    assert plan_words("own.yaml", [*words[:1], "seed=0..2"], "s").require_same() is not None
    (folder / "rows.jsonl").write_text('{"question": "1+1=", "answer": "3"}\n')
    (folder / "rewards.py").write_text(REWARDS + "\n")
    with pytest.raises(InputError, match=r"(?s)seed=0: data\.train was .*seed=1: code\.reward\.function was "):
        plan_words("own.yaml", words, "s").require_same()


class Diary(SweepView):
    """A view that notes what happens, and asks for a stop, or fails, after so many beginnings."""

    def __init__(self, stop: Stop, stop_after: int = 100, fail_after: int = 100) -> None:
        super().__init__("", [], None)
        self.told = list[str]()
        self.stop, self.stop_after, self.fail_after = stop, stop_after, fail_after

    def show_start(self, job: SweepJob) -> None:
        self.told.append(f"{job.run.name} begins")

    def show_end(self, job: SweepJob) -> None:
        self.told.append(f"{job.run.name} {job.state}")

    def update(self) -> None:
        if len(self.told) >= self.stop_after:
            self.stop.ask("Ctrl-C was received", exit_codes.INTERRUPTED)
        if len(self.told) >= self.fail_after:
            raise KeyboardInterrupt


def play(plan: SweepPlan, work: processes.Work, stop_after: int = 100, fail_after: int = 100) -> list[str]:
    """What happens to the jobs of a plan, two at a time, whose work is this."""

    def begin(loaded: Loaded) -> processes.Work:
        return work

    stop = Stop(None)
    diary = Diary(stop, stop_after, fail_after)
    try:
        Runner([SweepJob(run) for run in plan.runs], Room(1, ({}, {}), on_gpu=False), begin, diary).run(stop)
    except KeyboardInterrupt:
        diary.told.append("interrupted")
    return diary.told


def sleep() -> int:
    time.sleep(600)
    return 0


def test_a_stop_is_handed_on_and_nothing_starts_after_it(folder: Path) -> None:
    plan = plan_words("own.yaml", ["seed=0..2"], "s")
    assert play(plan, sleep, stop_after=2) == ["seed=0 begins", "seed=1 begins", "seed=0 stopped", "seed=1 stopped"]
    told = play(plan, sleep, fail_after=2)  # a second Ctrl-C
    assert told == ["seed=0 begins", "seed=1 begins", "seed=0 failed", "seed=1 failed", "interrupted"]
    assert play(plan, lambda: 0)[-1] == "seed=2 finished"


def test_a_run_that_has_a_checkpoint_resumes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (SweepJob(run) for run in plan_words("own.yaml", ["seed=0..1"], "s").runs)
    (first.run.folder / "checkpoints/step_000002").mkdir(parents=True)
    for job in (first, second):
        SweepView("s", [first, second], None).show_start(job)
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(";")[0] for line in said] == ["seed=0 resumes", "seed=1 begins"]


def save_when_asked() -> int:
    try:
        print("begun", file=sys.stderr)
        return sleep()
    except KeyboardInterrupt:
        print("lockstep: saved", file=sys.stderr)
        return exit_codes.INTERRUPTED


def test_a_run_that_cannot_be_started_fails_alone(folder: Path) -> None:
    plan = plan_words("own.yaml", ["seed=0..1"], "s")
    log = SweepJob(plan.runs[0]).log
    log.mkdir(parents=True)  # a folder, where its log belongs
    assert play(plan, lambda: 0) == ["seed=0 begins", "seed=1 begins", "seed=0 failed", "seed=1 finished"]

    def refuse(loaded: Loaded) -> processes.Work:
        raise OSError("the disk is full")

    jobs = [SweepJob(plan.runs[1])]
    Runner(jobs, Room(1, ({},), on_gpu=False), refuse, Diary(Stop(None))).run(Stop(None))
    assert (jobs[0].state, jobs[0].code, jobs[0].process) == ("failed", exit_codes.CRASH, 0)
    assert jobs[0].sentence == "it could not be started: the disk is full"
    with pytest.raises(ValueError, match="above 0"):
        processes.kill_group(0)


def test_runs_save_where_the_sweep_itself_fails(folder: Path) -> None:
    class Broken(Diary):
        def update(self) -> None:
            if jobs[0].log.is_file() and jobs[0].log.stat().st_size:
                raise ValueError("no room to show it")

    jobs = [SweepJob(plan_words("own.yaml", ["seed=0..1"], "s").runs[0])]
    runner = Runner(jobs, Room(1, ({},), on_gpu=False), lambda loaded: save_when_asked, Broken(Stop(None)))
    with pytest.raises(ValueError, match="no room"):
        runner.run(Stop(None))
    assert (jobs[0].process, jobs[0].code, jobs[0].sentence) == (0, exit_codes.INTERRUPTED, "saved")
    jobs[0].logged = jobs[0].log.stat().st_size  # what an earlier process said is no reason of the next
    assert jobs[0].sentence == f"its process ended with {exit_codes.INTERRUPTED}"


def test_a_command_that_forks_imports_numpy_without_threads() -> None:
    program = """
import os
from lockstep.process_defaults import spare_threads
with spare_threads():
    import numpy
print(len(os.listdir("/proc/self/task")), os.environ.get("OPENBLAS_NUM_THREADS"))
"""
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    command = [sys.executable, "-c", program]
    said = subprocess.run(command, env={**environment, "OMP_NUM_THREADS": "2"}, capture_output=True, check=True).stdout
    assert said.split() == [b"1", b"None"]


def test_what_several_runs_begin_with_is_trained_by_one_of_them(in_tmp: Path) -> None:
    plan = plan_words("ppo_arithmetic", ["ppo.clip=0.1,0.2"], "s")
    names = [run.name for run in plan.runs]
    assert play(plan, lambda: 0) == [f"{name} {event}" for name in names for event in ("begins", "finished")]


def test_room_is_what_cores_and_gpus_allow(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_words("own.yaml", ["seed=0..4"], "s")
    assert make_room(plan, 3, None).sentence == "3 at a time, 1 thread each"  # OMP_NUM_THREADS=1, as conftest.py says
    assert make_room(plan, None, 1000).sentence == "1 at a time, 1000 threads each"
    monkeypatch.setattr("lockstep.sweeps.room.count_cores", lambda: 64)
    assert [share_cores(number) for number in (1, 16, 100)] == [8, 4, 1]
    two = [Placement.of(Devices(1, 5, on_gpu=True), Processes(ranks=2))]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7,5,3,2,0")
    assert divide_gpus(plan, two, None) == ({"CUDA_VISIBLE_DEVICES": "7,5"}, {"CUDA_VISIBLE_DEVICES": "3,2"})
    with pytest.raises(InputError, match="a run takes 2 of 5 GPUs, so 2 at a time fit"):
        divide_gpus(plan, two, 3)
