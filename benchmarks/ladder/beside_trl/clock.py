"""The clock of both sides of `benchmarks.ladder.beside_trl`: CPU seconds between steps. Imports nothing of either."""

from __future__ import annotations

import json
import time
from pathlib import Path

CLOCK = "clock.json"


class StepClock:
    """CPU seconds at the end of each step, since the end of the first one, in which both sides warm up."""

    def __init__(self) -> None:
        self._ticks: list[float] = []

    def tick(self) -> int:
        """Notes the end of a step. Returns how many there were."""
        self._ticks.append(time.process_time())
        return len(self._ticks)

    def write(self, folder: Path, program: str) -> None:
        """Writes the seconds and the program's versions into a folder."""
        seconds = [round(tick - self._ticks[0], 4) for tick in self._ticks]
        (folder / CLOCK).write_text(json.dumps({"program": program, "cpu_s": seconds}))
