"""Two faults at once. The ten were drawn with a fixed seed among all that go together, each fault once, then listed."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.doctor_faults.fault import PLAINLY, Injected, Setup
from benchmarks.doctor_faults.lists import NUMBERED


def _large(number: int) -> Injected:
    return NUMBERED[number].large


def _small(number: int) -> Injected:
    return NUMBERED[number].small


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


def _pair(first: int, second: int, setup: Setup) -> tuple[Injected, Injected]:
    """Two large faults in surroundings that suit both."""
    one, other = (replace(NUMBERED[number], setup=lambda _: setup).large for number in (first, second))
    return one, other


SECOND_PAIRS = (
    _pair(101, 112, Setup("qwen3, deep", "torch", "hf", sampling=replace(PLAINLY, temperature=1.3))),
    _pair(114, 129, Setup("phi", "hf", "hf")),
    _pair(104, 110, Setup("gemma3", "torch", "hf")),
    _pair(111, 119, Setup("ernie", "hf", "torch", sampling=replace(PLAINLY, top_p=0.95))),
    _pair(117, 124, Setup("qwen3, deep", "torch", "torch")),
)
"""Of the second round."""
