"""A function as a tracker: what it is told, once more after a kill or a failure, and what cannot be one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from tiny_recipe import GRPO, REWARDS

import lockstep
from lockstep.config import Trackers
from lockstep.config.loading import load, load_run
from lockstep.config.named_code import CODE
from lockstep.config.user_code import import_file
from lockstep.errors import InputError
from lockstep.report.log import read_metrics
from lockstep.run.folder.identity import inputs
from lockstep.run.trackers.base import Logs
from lockstep.run.trackers.guard import Guarded
from lockstep.run.trackers.run import RunTracker, views_of
from lockstep.run.trackers.view import Facts

TRACK = """
TOLD, ERRORS = [], {}

def track(kind, step, data):
    if kind in ERRORS:
        raise ERRORS[kind]
    TOLD.append((kind, step))
    if kind == "samples":
        data[0]["parts"]["math"] = 7.0  # no matter: it is a copy

def narrow(kind, step):
    pass

async def waiting(kind, step, data):
    pass
"""


@pytest.fixture
def facts(in_tmp: Path) -> Facts:
    (in_tmp / "tracker.py").write_text(TRACK)
    (in_tmp / "run").mkdir()
    return Facts(in_tmp / "run", {"seed": 3}, {"torch": "2.13.0"})


class Process:
    """One process of a run: from the newest checkpoint on."""

    def __init__(self, facts: Facts, kept: int) -> None:
        self.notes: list[str] = []
        module = vars(import_file(Path("tracker.py").resolve()))
        self.told, self.errors = module["TOLD"], module["ERRORS"]
        self.told.clear()
        self.errors.clear()
        views = views_of(Trackers(function="tracker.py:track"), facts)
        self.tracker = RunTracker(Logs(facts.folder), [Guarded(n, v, self.notes.append) for n, v in views.items()])
        self.tracker.rewind(kept)

    def step(self, step: int) -> None:
        rows = [{"prompt": "Ada", "parts": {"math": 1.0}}]
        self.tracker.metrics(step, {"train/reward": float(step)})
        self.tracker.samples(step, rows)
        self.tracker.timings(step, {"generate": 0.5})
        assert rows[0]["parts"] == {"math": 1.0}


def lines(step: int) -> set[tuple[str, int]]:
    return {("metrics", step), ("samples", step), ("timings", step)}


def test_it_is_told_what_the_logs_are(facts: Facts) -> None:
    process = Process(facts, -1)
    process.step(0)
    process.tracker.close("interrupted")
    assert process.told == [("run", -1), ("metrics", 0), ("samples", 0), ("timings", 0), ("outcome", 0)]
    assert process.notes == ["function: tracker.py:track"]


def test_after_a_kill_it_is_told_from_the_step_that_it_may_lack(facts: Facts) -> None:
    process = Process(facts, -1)
    for step in range(4):
        process.step(step)
    resumed = Process(facts, 1)  # killed in step 3, after the checkpoint of step 1
    resumed.step(2)
    assert resumed.told == [("run", 1), ("metrics", 2), ("samples", 2), ("timings", 2)]


def test_one_that_joins_late_is_told_all(facts: Facts) -> None:
    logs = Logs(facts.folder)
    for step in range(2):
        logs.metrics(step, {"train/reward": 0.0})
    assert Process(facts, 1).told == [("run", -1), ("metrics", 0), ("metrics", 1)]


@pytest.mark.parametrize("error", [OSError("no route to https://ada:secret@server"), SystemExit(3)])
def test_what_it_raises_ends_nothing_and_is_told_again(facts: Facts, error: BaseException) -> None:
    process = Process(facts, -1)
    process.step(0)
    process.step(1)
    process.errors["samples"] = error
    process.step(2)
    process.step(3)  # left alone for a minute
    process.tracker.close("finished")
    assert "function failed: " in process.notes[1]
    assert "secret" not in process.notes[1]
    assert process.notes[2:] == ["function missed 5 entries; the run's own files have them"]
    again = Process(facts, 1 << 40)  # the same command, when the run is finished
    assert again.told[0] == ("run", 1)
    assert set(again.told[1:]) == lines(2) | lines(3)
    assert len(again.told) == 7


def test_after_a_note_that_could_not_be_written_it_is_told_again(facts: Facts) -> None:
    process = Process(facts, -1)
    process.step(0)
    process.step(1)
    aside = facts.folder / ".tracker_step.json-aside"
    aside.mkdir()  # as a full disk would
    process.step(2)
    aside.rmdir()
    process.tracker.close("failed")
    assert lines(2).isdisjoint(process.told)
    assert set(Process(facts, 1 << 40).told) == {("run", 0)} | lines(1) | lines(2)


@pytest.mark.parametrize(
    ("reference", "sentence"),
    [
        ("tracker.py:narrow", "does not take three arguments: kind, step and data"),
        ("tracker.py:waiting", "is an `async def`"),
        ("tracker.py:absent", "no function absent in tracker.py"),
        ("absent.py:track", "cannot be imported"),
    ],
)
def test_what_cannot_be_one(facts: Facts, reference: str, sentence: str) -> None:
    with pytest.raises(InputError, match=f"trackers.function {reference}.*{sentence}"):
        views_of(Trackers(function=reference), facts)


def test_its_code_is_no_part_of_the_run_but_is_noted(facts: Facts) -> None:
    (Path("rewards.py")).write_text(REWARDS)
    Path("tiny.yaml").write_text(yaml.safe_dump(GRPO))
    plain, tracked = load("tiny.yaml"), load("tiny.yaml", ["trackers.function=tracker.py:track"])
    assert inputs(plain, {}, None) == inputs(tracked, {}, None)
    assert tracked.digest == plain.digest


def test_code_of_a_strangers_folder_is_not_run(facts: Facts) -> None:
    (facts.folder / "tracker.py").write_text("raise SystemExit('this ran')")
    tree = {**GRPO, "trackers": {"function": "run/tracker.py:track"}}
    (facts.folder / "recipe.yaml").write_text(yaml.safe_dump(tree))
    with pytest.raises(InputError, match=r"trackers.function run/tracker\.py:track is code that lies in the run's own"):
        load_run(facts.folder)


def test_any_callable_from_python(in_tmp: Path) -> None:
    (in_tmp / "rewards.py").write_text(REWARDS)

    class Service:
        def __init__(self) -> None:
            self.told: list[tuple[str, int, Any]] = []

        def note(self, kind: str, step: int, data: Any) -> None:
            self.told.append((kind, step, data))

    service = Service()
    options = {key: value for key, value in GRPO.items() if key not in ("algorithm", "run")}
    options["run"] = {"max_steps": 1, "save_every": 1}
    run = lockstep.Trainer("grpo", **options, trackers=service.note).train()
    kinds = [kind for kind, _, _ in service.told]
    assert (kinds[0], kinds[-1]) == ("run", "outcome")
    assert service.told[0][2]["recipe"]["seed"] == 0
    assert service.told[-1][1:] == (1, "finished")
    logged = [row for row in read_metrics(run.folder) if row["step"] == 1]
    shown = {
        name: value
        for kind, step, data in service.told
        if (kind, step) == ("metrics", 1)
        for name, value in data.items()
    }
    assert shown["train/reward"] == next(row["train/reward"] for row in logged if "train/reward" in row)
    assert "trackers.function" not in (run.folder / CODE).read_text()  # it is in no file
