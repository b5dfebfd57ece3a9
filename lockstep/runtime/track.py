"""Writes a run's logs (`lockstep.report.log` says what stands in them), each line whole, each step once."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

from lockstep.report.log import METRICS, SAMPLES, TIMINGS, encode, lines


class Tracker:
    """Appends to a run's logs. One process at a time may write; any number may read meanwhile."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Adds a line of metrics to a step."""
        self._append(METRICS, step, [values])

    def timings(self, step: int, seconds: Mapping[str, float]) -> None:
        """Adds the seconds that each phase of a step took."""
        self._append(TIMINGS, step, [seconds])

    def samples(self, step: int, rows: Iterable[Mapping[str, Any]]) -> None:
        """Adds responses of a step."""
        self._append(SAMPLES, step, rows)

    def rewind(self, step: int) -> None:
        """Cuts the lines of later steps, and a line that was cut short by a kill, so that no step is logged twice.

        Lines stand in the order of their steps, so this is one truncation per file: done, or not done.

        Args:
            step: Steps whose work is kept. A run that has no checkpoint rewinds to −1, for its step 0, the validation
                before training, will be logged again.
        """
        for name in (METRICS, TIMINGS, SAMPLES):
            path = self._folder / name
            if path.exists():
                kept = takewhile(lambda line: line[0]["step"] <= step, lines(path))
                os.truncate(path, sum(size for _, size in kept))

    def _append(self, name: str, step: int, rows: Iterable[Mapping[str, Any]]) -> None:
        """One write, which the operating system has when it returns: a kill of the process afterwards loses nothing."""
        with (self._folder / name).open("ab", buffering=0) as file:
            file.write(b"".join(encode(step, row) for row in rows))
