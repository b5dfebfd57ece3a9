"""The parts of the benchmark."""

from __future__ import annotations

from typing import Literal

from benchmarks.doctor_faults.controls import healthy_runs
from benchmarks.doctor_faults.ground import make_ground
from benchmarks.doctor_faults.heldout import HELD_OUT
from benchmarks.doctor_faults.pairs import PAIRS
from benchmarks.doctor_faults.run import Suite
from benchmarks.doctor_faults.tuning import TUNING

Which = Literal["tuning", "heldout", "pairs", "controls", "all"]
HEALTHY_RUNS = 50
_HEALTHY = tuple(healthy_runs(HEALTHY_RUNS))

SUITES: dict[Which, Suite] = {
    "tuning": Suite("tuning", TUNING, ground=make_ground),
    "heldout": Suite("heldout", HELD_OUT, ground=make_ground),
    "pairs": Suite("pairs", (), PAIRS, ground=make_ground),
    "controls": Suite("controls", (), healthy=_HEALTHY, ground=make_ground),
    "all": Suite("all", TUNING + HELD_OUT, PAIRS, _HEALTHY, make_ground),
}
