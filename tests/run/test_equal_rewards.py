"""The note on rewards that are all equal: once for a stretch, and only for a stretch."""

from __future__ import annotations

import pytest

from lockstep.algorithms.job import StepResult
from lockstep.metrics import Metrics
from lockstep.run.loop import StepEvent
from lockstep.run.reward_alarms import EqualRewards

EQUAL, OTHER, MIXED, NONE = (1.0, 1.0), (0.0, 0.0), (0.0, 1.0), ()


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([EQUAL] * 4, []),
        ([EQUAL] * 12, ["every reward of steps 1 to 5 was 1,"]),
        ([MIXED] * 12, []),
        ([EQUAL] * 3 + [MIXED] + [EQUAL] * 4, []),
        ([EQUAL] * 4 + [OTHER] * 5, ["every reward of steps 5 to 9 was 0,"]),
        ([OTHER] * 5 + [MIXED] + [OTHER] * 5, ["every reward of steps 1 to 5 was 0,", "every reward of steps 7 to 11"]),
        ([NONE] * 12, []),
    ],
)
def test_a_stretch_is_noted_once(steps: list[tuple[float, ...]], said: list[str]) -> None:
    notes: list[str] = []
    hook = EqualRewards(notes.append)
    for step, extremes in enumerate(steps, 1):
        values: dict[str, float] = dict(zip(("train/reward_min", "train/reward_max"), extremes, strict=False))
        hook(StepEvent(step, StepResult(Metrics(), 0, 0), False, False, values))
    assert len(notes) == len(said)
    assert all(note.startswith(start) for note, start in zip(notes, said, strict=True))
