"""Views of a run's logs, with the real packages: what they show, what they do after a kill, and
when they fail.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import wandb
from read_trackers import (
    tensorboard_series,
    tensorboard_texts,
    wandb_records,
    wandb_series,
)

from lockstep.config import TensorBoard, Trackers, WandB
from lockstep.run.folder.logs import RunLogs
from lockstep.run.stop import StoppedRun
from lockstep.run.trackers.follow import LogTracker, build_views, track_run
from lockstep.run.trackers.view import RunFacts, RunOutcome, SampleRows, TrackerView

ROWS = [
    {"prompt": "# <b>Ada</b>\n[x](y)", "tokens": 3, "parts": {"math": 1.0}},
    {"prompt": "Bo", "tokens": None, "score": math.nan},
]
RECIPE = {"algorithm": "ppo", "ppo": {"clip": 0.2}, "seed": 3, "betas": [0.9, 0.99]}


@pytest.fixture
def facts(in_tmp: Path) -> RunFacts:
    folder = in_tmp / "ppo-1a2b"
    folder.mkdir()
    return RunFacts(folder, RECIPE, {"torch": "2.13.0"})


def steps(tracker: LogTracker, start: int, stop: int, worth: float = 1.0) -> None:
    for step in range(start, stop):
        tracker.logs.add_metrics(step, {"train/reward": step * worth})
        tracker.logs.add_samples(step, ROWS)
        tracker.logs.add_timings(step, {"generate": 0.5})
        tracker.catch_up()


def process(facts: RunFacts, recipe: Trackers, kept: int, stop: int, worth: float = 1.0) -> None:
    """One process of a run: from the newest checkpoint to its end."""
    with track_run(RunLogs(facts.folder), build_views(recipe, facts), print) as tracker:
        tracker.rewind_to(kept)
        steps(tracker, kept + 1, stop, worth)


def test_tensorboard_shows_metrics_timings_recipe_and_samples(facts: RunFacts) -> None:
    process(facts, Trackers(tensorboard=TensorBoard()), -1, 2)
    assert tensorboard_series(facts.folder) == {
        "train/reward": [(0, 0.0), (1, 1.0)],
        "timings/generate": [(0, 0.5), (1, 0.5)],
    }
    assert "clip: 0.2" in tensorboard_texts(facts.folder, "recipe/text_summary")[0]
    assert "2.13.0" in tensorboard_texts(facts.folder, "environment/text_summary")[0]
    first = tensorboard_texts(facts.folder, "samples/0/text_summary")
    assert first.keys() == {0, 1}
    assert first[0] == (
        '    prompt: # <b>Ada</b>\n    [x](y)\n    tokens: 3\n    parts: {"math": 1.0}\n    '
        "score: None"
    )


def test_wandb_shows_metrics_config_sample_tables_and_exit_code(facts: RunFacts) -> None:
    process(facts, Trackers(wandb=WandB(project="words", name="first", mode="offline")), -1, 2)
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
    assert shown["data"] == [
        [ROWS[0]["prompt"], 3, '{"math": 1.0}', None],
        ["Bo", None, None, None],
    ]
    assert [record["exit_code"] for record in wandb_records(facts.folder, "exit")] == [0]


def test_wandb_online_without_api_key_is_rejected(
    facts: RunFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(facts.folder / "netrc"))
    with pytest.raises(ValueError, match="you are not logged in to W&B; run `wandb login`"):
        build_views(Trackers(wandb=WandB(mode="online")), facts)


@pytest.mark.parametrize(("key", "place"), [("", "offline"), ("k" * 40, "online")])
def test_wandb_is_online_exactly_if_the_user_is_logged_in(
    facts: RunFacts, monkeypatch: pytest.MonkeyPatch, key: str, place: str
) -> None:
    monkeypatch.setenv("NETRC", str(facts.folder / "netrc"))
    monkeypatch.setenv("WANDB_API_KEY", key)
    started = dict[str, str]()
    monkeypatch.setattr(wandb, "init", started.update)
    try:
        [view] = build_views(Trackers(wandb=WandB()), facts).values()
        with pytest.raises(AttributeError):  # there is no run of W&B
            view.open_view(-1)
    finally:
        wandb.teardown()
    assert started["mode"] == place


@dataclass
class Told(TrackerView):
    """A view that remembers what it is sent, and fails where it is told to."""

    newest: int = -1
    rows: list[tuple[int, Any]] = field(default_factory=list)
    broken: Exception | None = None

    @property
    def run_location(self) -> str:
        return "in memory"

    def open_view(self, step: int) -> int:
        return self.newest

    def send_step(
        self, step: int, values: Mapping[str, float], samples: Mapping[str, SampleRows]
    ) -> None:
        if self.broken is not None:
            raise self.broken
        self.rows.append((step, {**values, **samples}))

    def close_view(self, outcome: RunOutcome) -> None:
        self.rows.append((-1, outcome))


def test_tracker_view_receives_each_logged_step_once(tmp_path: Path) -> None:
    logs, early, late = RunLogs(tmp_path), Told(), Told(newest=1)
    tracker = LogTracker(logs, {"early": early}, print)
    tracker.rewind_to(-1)
    logs.add_metrics(0, {"validation/accuracy": math.inf})
    tracker.catch_up()
    for step in (1, 2):
        logs.add_metrics(step, {"train/reward": 0.5})
        logs.add_metrics(step, {"validation/accuracy": 0.25})
        logs.add_samples(step, [{"prompt": "a"}, {"prompt": "b"}])
        logs.add_samples(step, [{"held_out": True, "prompt": "c"}])
        logs.add_timings(step, {"generate": 1.5})
        tracker.catch_up()
    whole = {
        "train/reward": 0.5,
        "validation/accuracy": 0.25,
        "timings/generate": 1.5,
        "samples": [{"prompt": "a"}, {"prompt": "b"}],
        "validation_samples": [{"held_out": True, "prompt": "c"}],
    }
    assert early.rows == [(0, {"validation/accuracy": math.inf}), (1, whole), (2, whole)]
    LogTracker(logs, {"late": late}, print).rewind_to(2)  # it has had step 1
    assert late.rows == [(2, whole)]


def test_failing_tracker_is_noted_once_and_others_continue(tmp_path: Path) -> None:
    logs, failing, healthy, notes = RunLogs(tmp_path), Told(), Told(), list[str]()
    tracker = LogTracker(logs, {"failing": failing, "healthy": healthy}, notes.append)
    tracker.rewind_to(-1)
    assert notes == ["failing: in memory", "healthy: in memory"]
    failing.broken = OSError("no route to https://ada:secret@server/api")
    for step in range(3):
        logs.add_metrics(step, {})
        tracker.catch_up()
    tracker.close_views("finished")
    assert notes[2:] == [
        "failing failed: no route to https://server/api; the run continues without it, and its "
        "own files have everything"
    ]
    assert failing.rows == []
    assert [step for step, _ in healthy.rows] == [0, 1, 2, -1]


@pytest.mark.parametrize(
    ("ending", "outcome"),
    [
        (None, "finished"),
        (ValueError(), "failed"),
        (KeyboardInterrupt(), "interrupted"),
        (StoppedRun("time is over", 75), "interrupted"),
    ],
)
def test_tracker_views_receive_run_outcome(
    tmp_path: Path, ending: BaseException | None, outcome: RunOutcome
) -> None:
    view = Told()
    with (
        suppress(StoppedRun, KeyboardInterrupt, ValueError),
        track_run(RunLogs(tmp_path), {"told": view}, print) as tracker,
    ):
        tracker.rewind_to(-1)
        if ending is not None:
            raise ending
    assert view.rows == [(-1, outcome)]
