"""Trackers of a run: views that follow its logs. A failing view does not stop the run."""

from __future__ import annotations

import heapq
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import groupby
from typing import Any

from lockstep.config import Trackers
from lockstep.core.errors import InputError, install_command
from lockstep.report.log import LOGS, SAMPLES, TIMINGS, decode_numbers, read_lines
from lockstep.run.folder.logs import RunLogs
from lockstep.run.stop import StoppedRun
from lockstep.run.trackers.view import RunFacts, RunOutcome, TrackerView


class LogTracker:
    """The logs of a run and the views that follow them.

    Views receive the contents of the files, so that replayed and new steps look the same.

    Args:
        logs: The logs.
        views: The views by name; see `build_views`.
        note: Shows the user a line.
    """

    def __init__(
        self, logs: RunLogs, views: Mapping[str, TrackerView], note: Callable[[str], None]
    ) -> None:
        self.logs, self._views, self._note = logs, dict(views), note
        # the newest step that each open view had when it was opened
        self._newest: dict[str, int] = {}
        self._read: dict[str, int] = dict.fromkeys(LOGS, 0)  # bytes sent, by log

    def rewind_to(self, step: int) -> None:
        """Rewinds the logs, see `RunLogs.rewind_to`, opens the views, and sends them the logs.

        Raises:
            InputError: A view cannot be opened, and the run has not trained yet; a later failure
                is only a note.
        """
        self.logs.rewind_to(step)
        for name, view in self._views.items():
            try:
                self._newest[name] = view.open_view(step)
            except Exception as error:
                sentence = f"trackers.{name} cannot be opened: {_describe_error(error)}"
                if step < 0:
                    raise InputError(f"{sentence}; fix it, or remove it from the recipe") from error
                self._note(
                    f"{sentence}; the run continues without it, and its own files have everything"
                )
            else:
                self._note(f"{name}: {view.run_location}")
        self.catch_up()

    def catch_up(self) -> None:
        """Sends the log entries since the last call."""
        if not self._newest:
            return
        entries = heapq.merge(*map(self._list_unread, LOGS), key=lambda entry: entry[0])
        for step, group in groupby(entries, key=lambda entry: entry[0]):
            values: dict[str, float] = {}
            samples: dict[str, list[dict[str, Any]]] = defaultdict(list)
            for _, name, row in group:
                if name == SAMPLES:
                    samples["validation_samples" if row.get("held_out") else "samples"].append(row)
                else:
                    prefix = "timings/" if name == TIMINGS else ""
                    values |= {
                        f"{prefix}{key}": value for key, value in decode_numbers(name, row).items()
                    }
            for name in [name for name, newest in self._newest.items() if newest < step]:
                with self._tolerate_failure(name):
                    self._views[name].send_step(step, values, samples)

    def close_views(self, outcome: RunOutcome) -> None:
        """Sends the rest, and closes the views."""
        self.catch_up()
        for name in list(self._newest):
            with self._tolerate_failure(name):
                self._views[name].close_view(outcome)

    @contextmanager
    def _tolerate_failure(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            del self._newest[name]
            self._note(
                f"{name} failed: {_describe_error(error)}; the run continues without it, and its "
                "own files have everything"
            )

    def _list_unread(self, name: str) -> Iterator[tuple[int, str, dict[str, Any]]]:
        for row, size in read_lines(self.logs.folder / name, self._read[name]):
            self._read[name] += size
            yield row.pop("step"), name, row


@contextmanager
def track_run(
    logs: RunLogs, views: Mapping[str, TrackerView], note: Callable[[str], None]
) -> Iterator[LogTracker]:
    """Tracks a run in the `with` block; the block's end decides the outcome; see `LogTracker`."""
    tracker = LogTracker(logs, views, note)
    outcome: RunOutcome = "failed"
    try:
        yield tracker
        outcome = "finished"
    except (KeyboardInterrupt, StoppedRun):
        outcome = "interrupted"
        raise
    finally:
        logs.sync_to_disk()
        tracker.close_views(outcome)


def build_views(recipe: Trackers, facts: RunFacts) -> dict[str, TrackerView]:
    """The views that a recipe enables, by name, not yet open.

    Packages of other views are not imported.

    Raises:
        InputError: A package is missing, or W&B has no login.
    """
    views: dict[str, TrackerView] = {}
    if recipe.tensorboard is not None:
        with _find_package("tensorboard"):
            from lockstep.run.trackers.tensorboard import TensorBoardView

            views["tensorboard"] = TensorBoardView(facts)
    if recipe.wandb is not None:
        # read on import: send only what is logged
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        with _find_package("wandb"):
            from lockstep.run.trackers.wandb import WandBView

            views["wandb"] = WandBView(recipe.wandb, facts)
    return views


@contextmanager
def _find_package(name: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as missing:
        raise InputError(
            f"trackers.{name} requires the package {missing.name}; {install_command(name)}"
        ) from missing


def _describe_error(error: Exception) -> str:
    """The error in one line, with user and password removed from URLs."""
    text = " ".join(str(error).split()) or type(error).__name__
    return re.sub(r"//[^/@\s]+@", "//", text)[:300]
