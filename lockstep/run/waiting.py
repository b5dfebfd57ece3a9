"""Waiting for a run that another process is training."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from lockstep import exit_codes
from lockstep.fault_policy import Attempts, Seldom
from lockstep.report.log import read_metrics
from lockstep.run.stop import Stopped


def patience(name: str, folder: Path, deadline_s: float | None, note: Callable[[str], object]) -> Iterator[None]:
    """Yields whenever it is time to try again; tells the user how far the awaited run is.

    Args:
        name: Name of the recipe that waits.
        folder: Folder of the run that another process is training.
        deadline_s: On `time.monotonic`; None: waits as long as it takes.
        note: Shows the user a line.

    Raises:
        Stopped: If the deadline is over.
    """
    yield
    attempts, tell = Attempts("lock"), Seldom(note)
    tell(f"another process is training {folder}; {name} waits for it, and begins with its model")
    while attempts.again():
        if deadline_s is not None and time.monotonic() > deadline_s:
            raise Stopped(
                f"stopped before step 1, because run.max_time_s is over and {folder} is not trained yet; the same "
                "command resumes from there",
                exit_codes.OUT_OF_TIME,
            )
        if tell.is_due:
            tell(f"{name} waits: {folder} has done {_steps(folder)} steps")
        yield


def _steps(folder: Path) -> int:
    return max((int(row["step"]) for row in read_metrics(folder)), default=0)
