"""Views of a run's logs, with the real packages: what they show, what they do after a kill, and when they fail."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient
from read_trackers import (
    mlflow_runs,
    mlflow_series,
    tensorboard_series,
    tensorboard_texts,
    wandb_records,
    wandb_series,
)

from lockstep.config import MLflow, TensorBoard, Trackers, WandB
from lockstep.run.stop import Stopped
from lockstep.run.trackers.base import Logs, Outcome
from lockstep.run.trackers.guard import Guarded
from lockstep.run.trackers.run import RunTracker, track_run, views_of
from lockstep.run.trackers.view import Facts, View, replay

ROWS = [
    {"prompt": "# <b>Ada</b>\n[x](y)", "tokens": 3, "parts": {"math": 1.0}},
    {"prompt": "Bo", "tokens": None, "score": math.nan},
]
RECIPE = {"algorithm": "ppo", "ppo": {"clip": 0.2}, "seed": 3, "betas": [0.9, 0.99]}


@pytest.fixture(scope="session")
def mlflow_store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One database for all: to make one takes seconds."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'mlflow.db'}"


@pytest.fixture
def facts(in_tmp: Path, mlflow_store: str, monkeypatch: pytest.MonkeyPatch) -> Facts:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_store)
    folder = in_tmp / "ppo-1a2b"
    folder.mkdir()
    return Facts(folder, RECIPE, {"torch": "2.13.0"})


def steps(tracker: RunTracker, start: int, stop: int, worth: float = 1.0) -> None:
    for step in range(start, stop):
        tracker.metrics(step, {"train/reward": step * worth})
        tracker.samples(step, ROWS)
        tracker.timings(step, {"generate": 0.5})


def process(facts: Facts, recipe: Trackers, kept: int, stop: int, worth: float = 1.0) -> None:
    """One process of a run: from the newest checkpoint to its end."""
    with track_run(Logs(facts.folder), views_of(recipe, facts), print) as tracker:
        tracker.rewind(kept)
        steps(tracker, kept + 1, stop, worth)


def interrupted_process(facts: Facts, recipe: Trackers, stop: int) -> None:
    with suppress(KeyboardInterrupt), track_run(Logs(facts.folder), views_of(recipe, facts), print) as tracker:
        tracker.rewind(-1)
        steps(tracker, 0, stop)
        raise KeyboardInterrupt


REWARDS_AFTER_A_KILL = [(0, 0.0), (1, 1.0), (2, 2.0), (3, 30.0), (4, 40.0)]
"""Steps 3 to 5 were lost and made again, with another outcome, so that one can see which is shown."""


def test_tensorboard_shows_the_run(facts: Facts) -> None:
    process(facts, Trackers(tensorboard=TensorBoard()), -1, 2)
    assert tensorboard_series(facts.folder) == {
        "train/reward": [(0, 0.0), (1, 1.0)],
        "timings/generate": [(0, 0.5), (1, 0.5)],
    }
    assert "clip: 0.2" in tensorboard_texts(facts.folder, "recipe/text_summary")[0]
    assert "2.13.0" in tensorboard_texts(facts.folder, "environment/text_summary")[0]
    first = tensorboard_texts(facts.folder, "samples/0/text_summary")
    assert first.keys() == {0, 1}
    assert first[0] == '    prompt: # <b>Ada</b>\n    [x](y)\n    tokens: 3\n    parts: {"math": 1.0}\n    score: None'


def test_wandb_shows_the_run(facts: Facts) -> None:
    process(facts, Trackers(wandb=WandB(project="words", name="first")), -1, 2)
    assert wandb_series(facts.folder) == {
        "train/reward": [(0, 0.0), (1, 1.0)],
        "timings/generate": [(0, 0.5), (1, 0.5)],
    }
    (run,) = wandb_records(facts.folder, "run")
    assert (run["project"], run["display_name"]) == ("words", "first")
    config = run["config"]["update"]
    assert (config["recipe"], config["environment"]) == (RECIPE, {"torch": "2.13.0"})
    tables = sorted(facts.folder.glob("wandb/offline-run-*/files/media/table/samples_*.table.json"))
    assert len(tables) == 2
    shown = json.loads(tables[0].read_text())
    assert shown["columns"] == ["prompt", "tokens", "parts", "score"]
    assert shown["data"] == [[ROWS[0]["prompt"], 3, '{"math": 1.0}', None], ["Bo", None, None, None]]
    assert [record["exit_code"] for record in wandb_records(facts.folder, "exit")] == [0]


def test_wandb_online_without_a_key_is_refused_before_anything_is_done(
    facts: Facts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(facts.folder / "netrc"))
    with pytest.raises(ValueError, match="W&B does not know who you are; run `wandb login`"):
        views_of(Trackers(wandb=WandB(mode="online")), facts)


def test_mlflow_shows_the_run(facts: Facts) -> None:
    process(facts, Trackers(mlflow=MLflow(experiment="shown", name="first")), -1, 2)
    (run,) = mlflow_runs("shown")
    assert mlflow_series(run) == {"train/reward": [(0, 0.0), (1, 1.0)], "timings/generate": [(0, 0.5), (1, 0.5)]}
    assert (run.info.run_name, run.info.status) == ("first", "FINISHED")
    assert run.data.params == {"algorithm": "ppo", "ppo.clip": "0.2", "seed": "3", "betas": "[0.9, 0.99]"}
    client = MlflowClient()
    environment = client.download_artifacts(run.info.run_id, "environment.json")
    assert json.loads(Path(environment).read_text()) == {"torch": "2.13.0"}
    newest = client.load_table(run.info.experiment_id, "samples/step_000001.json")
    assert newest["prompt"].to_list() == [row["prompt"] for row in ROWS]


def test_mlflow_goes_on_with_the_same_run_where_it_can(facts: Facts) -> None:
    recipe = Trackers(mlflow=MLflow(experiment="stopped"))
    interrupted_process(facts, recipe, 3)
    (before,) = mlflow_runs("stopped")
    assert before.info.status == "KILLED"
    process(facts, recipe, 2, 5, worth=10.0)
    (run,) = mlflow_runs("stopped")
    assert (run.info.run_id, run.info.status) == (before.info.run_id, "FINISHED")
    assert mlflow_series(run)["train/reward"] == REWARDS_AFTER_A_KILL


@dataclass
class Told(View):
    """A view that remembers what it is told, and fails where it is told to."""

    rows: list[tuple[int, str, Any]] = field(default_factory=list)
    broken: Exception | None = None
    outcome: Outcome | None = None

    @property
    def where(self) -> str:
        return "in memory"

    def _add(self, step: int, kind: str, values: Any) -> None:
        if self.broken is not None:
            raise self.broken
        self.rows.append((step, kind, values))

    def rewind(self, step: int) -> None:
        self._add(step, "rewind", None)

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self._add(step, "metrics", dict(values))

    def timings(self, step: int, seconds: Mapping[str, float]) -> None:
        self._add(step, "timings", dict(seconds))

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        self._add(step, "samples", list(rows))

    def close(self, outcome: Outcome) -> None:
        self._add(-1, "close", outcome)


def test_a_replay_tells_what_was_told(tmp_path: Path) -> None:
    live, again = Told(), Told()
    logs = RunTracker(Logs(tmp_path), [live])
    logs.metrics(0, {"validation/accuracy": math.inf})
    for step in (1, 2):
        logs.metrics(step, {"train/reward": 0.5})
        logs.metrics(step, {"validation/accuracy": 0.25})
        logs.samples(step, [{"prompt": "a"}, {"prompt": "b"}])
        logs.samples(step, [{"held_out": True, "prompt": "c"}])
        logs.timings(step, {"generate": 1.5})
    replay(tmp_path, again)
    assert again.rows == live.rows


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_failing_view_is_noted_once_counted_and_tried_again_later() -> None:
    view, notes, clock = Told(), list[str](), Clock()
    guarded = Guarded("mlflow", view, notes.append, clock)
    guarded.rewind(-1)
    assert notes == ["mlflow: in memory"]
    view.broken = OSError("no route to https://ada:secret@server/api")
    for step in range(3):
        guarded.metrics(step, {})
    view.broken = None
    guarded.metrics(3, {})
    clock.now = 61.0
    guarded.metrics(4, {})
    guarded.close("finished")
    assert notes[1:] == [
        "mlflow failed: no route to https://server/api; the run continues, and its own files have everything",
        "mlflow missed 4 entries; the run's own files have them",
    ]
    assert [(step, kind) for step, kind, _ in view.rows] == [(-1, "rewind"), (4, "metrics"), (-1, "close")]


def test_a_view_that_fails_slowly_takes_at_most_a_tenth_of_the_time() -> None:
    clock = Clock()

    class Slow(Told):
        def metrics(self, step: int, values: Mapping[str, float]) -> None:
            clock.now += 120.0
            super().metrics(step, values)

    view = Slow()
    guarded = Guarded("mlflow", view, lambda text: None, clock)
    guarded.rewind(-1)
    view.broken = OSError()
    spent = 0.0
    for step in range(1000):
        began = clock.now
        guarded.metrics(step, {})
        spent += clock.now - began
        clock.now += 10.0
    assert 0 < spent < 0.11 * clock.now


@pytest.mark.parametrize(
    ("ending", "outcome"),
    [
        (None, "finished"),
        (ValueError(), "failed"),
        (KeyboardInterrupt(), "interrupted"),
        (Stopped("time is over", 75), "interrupted"),
    ],
)
def test_views_are_told_how_the_run_ended(tmp_path: Path, ending: BaseException | None, outcome: Outcome) -> None:
    view: View = Told()

    def go() -> None:
        with track_run(Logs(tmp_path), {"told": view}, print) as tracker:
            tracker.rewind(-1)
            if ending is not None:
                raise ending

    if ending is None:
        go()
    else:
        with pytest.raises(type(ending)):
            go()
    assert view.rows[-1] == (-1, "close", outcome)
