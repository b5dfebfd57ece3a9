"""The parts of the benchmark."""

from __future__ import annotations

from typing import Literal

from benchmarks.doctor_faults.controls import healthy_runs
from benchmarks.doctor_faults.lists import HELD_OUT, TUNING
from benchmarks.doctor_faults.pairs import PAIRS
from benchmarks.doctor_faults.run import Suite

Which = Literal["tuning", "heldout", "pairs", "controls", "all"]
HEALTHY_RUNS = 50
_HEALTHY = tuple(healthy_runs(HEALTHY_RUNS))

SUITES: dict[Which, Suite] = {
    "tuning": Suite("tuning", TUNING),
    "heldout": Suite("heldout", HELD_OUT),
    "pairs": Suite("pairs", (), PAIRS),
    "controls": Suite("controls", (), healthy=_HEALTHY),
    "all": Suite("all", TUNING + HELD_OUT, PAIRS, _HEALTHY),
}
