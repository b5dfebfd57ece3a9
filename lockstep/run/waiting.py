"""Waiting for a run that another process is training."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

from lockstep import exit_codes
from lockstep.report.log import read_metrics
from lockstep.run.stop import Stopped

_TRY_EVERY_S, _TELL_EVERY_S = 0.5, 60.0


def patience(name: str, folder: Path, deadline_s: float | None) -> Iterator[None]:
    """Yields whenever it is time to try again; tells the user, on standard error, how far the awaited run is.

    Args:
        name: Name of the recipe that waits.
        folder: Folder of the run that another process is training.
        deadline_s: On `time.monotonic`; None: waits as long as it takes.

    Raises:
        Stopped: If the deadline is over.
    """
    yield
    print(f"another process is training {folder}; {name} waits for it, and begins with its model", file=sys.stderr)
    last_note = time.monotonic()
    while True:
        time.sleep(_TRY_EVERY_S)
        if deadline_s is not None and time.monotonic() > deadline_s:
            raise Stopped(
                f"stopped before step 1, because run.max_time_s is over and {folder} is not trained yet; the same "
                "command resumes from there",
                exit_codes.OUT_OF_TIME,
            )
        if time.monotonic() - last_note > _TELL_EVERY_S:
            last_note = time.monotonic()
            print(f"{name} waits: {folder} has done {_steps(folder)} steps", file=sys.stderr)
        yield


def _steps(folder: Path) -> int:
    return max((int(row["step"]) for row in read_metrics(folder)), default=0)
