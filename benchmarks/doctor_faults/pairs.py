"""Two faults at once. The ten were drawn with a fixed seed among all that go together, each fault once, then listed."""

from __future__ import annotations

from benchmarks.doctor_faults.fault import Injected
from benchmarks.doctor_faults.tuning import TUNING

_BY_NUMBER = {fault.number: fault for fault in TUNING}


def _large(number: int) -> Injected:
    return _BY_NUMBER[number].large


def _small(number: int) -> Injected:
    return _BY_NUMBER[number].small


PAIRS: tuple[tuple[Injected, Injected], ...] = (
    (_large(25), _large(14)),
    (_large(30), _small(12)),
    (_large(16), _small(27)),
    (_small(6), _small(8)),
    (_small(2), _large(24)),
    (_small(5), _large(7)),
    (_large(1), _large(21)),
    (_large(10), _small(22)),
    (_large(11), _large(23)),
    (_large(4), _large(15)),
)
"""Of different kinds, and never two that put something in the same place."""
