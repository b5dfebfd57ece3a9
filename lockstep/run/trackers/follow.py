"""Trackers of a run: views that follow its logs. One that fails neither stops the run nor slows it down for long."""

from __future__ import annotations

import heapq
import math
import os
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any

from lockstep.config import Trackers
from lockstep.core.errors import InputError, install_command
from lockstep.report.log import LOGS, SAMPLES, TIMINGS, decode, lines
from lockstep.run.folder.logs import Logs
from lockstep.run.stop import Stopped
from lockstep.run.trackers.view import Facts, Outcome, View
from lockstep.system.fault_policy import POLICY

_PAUSE_PER_FAILURE = 9.0  # times as long as the failure took: a dead server costs at most a tenth of the run's time


class Follower:
    """Sends a view what the logs have, from the file, so that a replay and a step are sent alike.

    Args:
        name: Name of the tracker.
        view: The view.
        logs: The logs, which have been rewound.
        note: Shows people a line.
        clock: Seconds that only grow.
    """

    def __init__(
        self,
        name: str,
        view: View,
        logs: Logs,
        note: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name, self._view, self._folder, self._note, self._clock = name, view, logs.folder, note, clock
        self._is_open = False
        self._again_at = -math.inf
        self._missed = 0
        self._newest = -1  # the newest step that the view had when it was opened
        self._read: dict[str, int] = dict.fromkeys(LOGS, 0)  # bytes of each log that were sent, or were tried once

    def open(self, step: int) -> None:
        """Opens the view, notes where it is, and sends it the logs.

        Raises:
            ValueError: If it cannot be opened and the run has not trained yet: better to stop than to train unseen.
        """
        try:
            self._newest = self._view.open(step)
        except Exception as error:
            sentence = f"trackers.{self._name} cannot be opened: {_describe_error(error)}"
            if step < 0:
                raise InputError(f"{sentence}; mend that, or take it out of the recipe") from error
            self._note(f"{sentence}; the run continues without it, and its own files have everything")
            return
        self._is_open = True
        self._note(f"{self._name}: {self._view.where}")
        self.catch_up()

    def catch_up(self) -> None:
        """Sends what was logged since the last call; after a failure it waits, and passes over the failed step."""
        if self._is_open and self._clock() >= self._again_at:
            self._try(self._send)

    def close(self, outcome: Outcome) -> None:
        """Sends the rest, closes the view where it is open, and says whether it missed something."""
        if self._is_open:
            self._try(self._send)
            self._try(lambda: self._view.close(outcome))
        if self._missed:
            self._note(
                f"{self._name} missed entries, since it failed {self._missed} times; the run's own files have them"
            )

    def _try(self, call: Callable[[], None]) -> None:
        start = self._clock()
        try:
            call()
        except Exception as error:
            now = self._clock()
            self._again_at = now + max(*POLICY["tracker"].waits_s, _PAUSE_PER_FAILURE * (now - start))
            self._missed += 1
            if self._missed == 1:
                text = f"{self._name} failed: {_describe_error(error)}"
                self._note(f"{text}; the run continues, and its own files have everything")

    def _send(self) -> None:
        entries = heapq.merge(*map(self._list_unread, LOGS), key=lambda entry: entry[0])
        for step, group in groupby(entries, key=lambda entry: entry[0]):
            values: dict[str, float] = {}
            samples: dict[str, list[dict[str, Any]]] = defaultdict(list)
            for _, name, row, end in group:
                self._read[name] = end  # before it is sent: what a view cannot take is not sent again and again
                if name == SAMPLES:
                    samples["validation_samples" if row.get("held_out") else "samples"].append(row)
                else:
                    prefix = "timings/" if name == TIMINGS else ""
                    values |= {f"{prefix}{key}": value for key, value in decode(name, row).items()}
            if step > self._newest:
                self._view.send(step, values, samples)

    def _list_unread(self, name: str) -> Iterator[tuple[int, str, dict[str, Any], int]]:
        end = self._read[name]
        for row, size in lines(self._folder / name, end):
            end += size
            yield row.pop("step"), name, row, end


class Tracker:
    """The logs of a run and the followers that show them."""

    def __init__(self, logs: Logs, followers: Sequence[Follower]) -> None:
        self.logs, self._followers = logs, followers

    def rewind(self, step: int) -> None:
        """Rewinds the logs, see `Logs.rewind`, and opens the views."""
        self.logs.rewind(step)
        for follower in self._followers:
            follower.open(step)

    def catch_up(self) -> None:
        """Shows what was logged since the last call."""
        for follower in self._followers:
            follower.catch_up()


@contextmanager
def track_run(logs: Logs, views: Mapping[str, View], note: Callable[[str], None]) -> Iterator[Tracker]:
    """Tracks a run while the `with` block lasts; the way the block ends is the outcome of the run.

    Args:
        logs: Logs of the run.
        views: By name, see `views_of`.
        note: Shows people a line.
    """
    followers = [Follower(name, view, logs, note) for name, view in views.items()]
    outcome: Outcome = "failed"
    try:
        yield Tracker(logs, followers)
        outcome = "finished"
    except (KeyboardInterrupt, Stopped):
        outcome = "interrupted"
        raise
    finally:
        logs.sync()
        for follower in followers:
            follower.close(outcome)


def views_of(recipe: Trackers, facts: Facts) -> dict[str, View]:
    """The views that a recipe asks for, by name, not yet open. Packages of other views are not imported.

    Raises:
        ValueError: If a package is missing, or W&B does not know who you are.
    """
    views: dict[str, View] = {}
    if recipe.tensorboard is not None:
        with _package_of("tensorboard"):
            from lockstep.run.trackers.tensorboard import TensorBoardView

            views["tensorboard"] = TensorBoardView(facts)
    if recipe.wandb is not None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # read at the import: sends nothing but what is logged
        with _package_of("wandb"):
            from lockstep.run.trackers.wandb import WandBView

            views["wandb"] = WandBView(recipe.wandb, facts)
    if recipe.mlflow is not None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # sends no telemetry
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")  # a step waits for MLflow, but not for minutes
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        with _package_of("mlflow"):
            from lockstep.run.trackers.mlflow import MLflowView

            views["mlflow"] = MLflowView(recipe.mlflow, facts)
    return views


@contextmanager
def _package_of(name: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as missing:
        raise InputError(
            f"trackers.{name} needs the package {missing.name}, which is not installed; {install_command(name)}"
        ) from missing


def _describe_error(error: Exception) -> str:
    """The error in one line, without a user and a password that stood in an address."""
    text = " ".join(str(error).split()) or type(error).__name__
    return re.sub(r"//[^/@\s]+@", "//", text)[:300]
