"""A hook that warns of equal rewards, from which a run learns nothing."""

from __future__ import annotations

from collections.abc import Callable

from lockstep.algorithms.step import StepEvent
from lockstep.report.alarms import EQUAL_STEPS


class EqualRewards:
    """Notes, once per stretch of steps, that every response had the same reward.

    Args:
        note: Shows a line that stays.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._value: float | None = None
        self._steps = 0

    def __call__(self, event: StepEvent) -> None:
        low, high = event.values.get("train/reward_min"), event.values.get("train/reward_max")
        if low is None or low != high:
            self._value, self._steps = None, 0
            return
        self._steps = self._steps + 1 if low == self._value else 1
        self._value = low
        if self._steps == EQUAL_STEPS:
            first = event.step - EQUAL_STEPS + 1
            self._note(
                f"every reward of steps {first} to {event.step} was {low:g}, and from equal rewards "
                "nothing is learned; read samples.jsonl, and see whether the reward, data.answer, reward.marker or "
                "sampling.max_tokens is wrong, or the task is too hard or too easy for this model"
            )
