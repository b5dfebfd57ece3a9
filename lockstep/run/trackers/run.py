"""The trackers of a run: its logs, and the views of them that its recipe asks for."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from lockstep.config import Trackers
from lockstep.errors import InputError, install_command
from lockstep.report.log import TIMINGS
from lockstep.run.stop import Stopped
from lockstep.run.trackers.base import Logs, Outcome, Tracker
from lockstep.run.trackers.guard import Guarded
from lockstep.run.trackers.view import Facts, View
from lockstep.sums import Sum


class RunTracker:
    """The tracker of a run: forwards to the logs first, then to the views."""

    def __init__(self, logs: Logs, views: Sequence[Tracker]) -> None:
        self._logs = logs
        self._all: list[Tracker] = [logs, *views]

    def rewind(self, step: int) -> None:
        for tracker in self._all:
            tracker.rewind(step)

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        for tracker in self._all:
            tracker.metrics(step, values)

    def timings(self, step: int, seconds: Mapping[str, float]) -> None:
        for tracker in self._all:
            tracker.timings(step, seconds)

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        for tracker in self._all:
            tracker.samples(step, rows)

    def close(self, outcome: Outcome) -> None:
        for tracker in self._all:
            tracker.close(outcome)

    def sums(self) -> dict[str, Sum]:
        """Sizes and digests of the logs but that of clock times: of equal runs, checkpoints are equal, too."""
        return {name: sum_ for name, sum_ in self._logs.sums().items() if name != TIMINGS}

    def sync(self) -> None:
        """Syncs the logs, see `Logs.sync`; views can be rebuilt."""
        self._logs.sync()


@contextmanager
def track_run(logs: Logs, views: Mapping[str, View], note: Callable[[str], None]) -> Iterator[RunTracker]:
    """Tracks a run while the `with` block lasts; the way the block ends is the outcome of the run.

    Args:
        logs: Logs of the run.
        views: By name, see `views_of`.
        note: Shows people a line.
    """
    tracker = RunTracker(logs, [Guarded(name, view, note) for name, view in views.items()])
    outcome: Outcome = "failed"
    try:
        yield tracker
        outcome = "finished"
    except (KeyboardInterrupt, Stopped):
        outcome = "interrupted"
        raise
    finally:
        tracker.close(outcome)


def views_of(recipe: Trackers, facts: Facts) -> dict[str, View]:
    """The views that a recipe asks for, by name, not yet open. Packages of other views are not imported.

    Raises:
        ValueError: If a package is missing, or W&B does not know who you are.
    """
    views: dict[str, View] = {}
    for name, make in _MAKERS.items():
        try:
            view = make(recipe, facts)
        except ModuleNotFoundError as missing:
            raise InputError(
                f"trackers.{name} needs the package {missing.name}, which is not installed; {install_command(name)}"
            ) from missing
        if view is not None:
            views[name] = view
    return views


def _tensorboard(recipe: Trackers, facts: Facts) -> View | None:
    if recipe.tensorboard is None:
        return None
    from lockstep.run.trackers.tensorboard import TensorBoardView

    return TensorBoardView(facts)


def _wandb(recipe: Trackers, facts: Facts) -> View | None:
    if recipe.wandb is None:
        return None
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # read at the import: nothing is sent but what is logged
    from lockstep.run.trackers.wandb import WandBView

    return WandBView(recipe.wandb, facts)


def _mlflow(recipe: Trackers, facts: Facts) -> View | None:
    if recipe.mlflow is None:
        return None
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # sends no telemetry
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")  # a step waits for MLflow, but not for minutes
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    from lockstep.run.trackers.mlflow import MLflowView

    return MLflowView(recipe.mlflow, facts)


_MAKERS = {"tensorboard": _tensorboard, "wandb": _wandb, "mlflow": _mlflow}
"""Makers of views, by the option of `trackers` that asks for one."""
