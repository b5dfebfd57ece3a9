"""Hooks that warn, while a run trains, of equal rewards and of rewards earned in a way that the task does not mean."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from lockstep.algorithms.job import StepEvent
from lockstep.report.alarms import EQUAL_STEPS, WINDOW, WINDOW_RULES


class RewardAlarms:
    """Notes, once each, that being cut off pays, and that rewards are above those of the best policy.

    Args:
        note: Shows a line that stays.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._window = deque[Mapping[str, float]](maxlen=WINDOW)
        self._left = dict(WINDOW_RULES)

    def __call__(self, event: StepEvent) -> None:
        if not event.values.keys() >= WINDOW_RULES.keys():
            return
        self._window.append(event.values)
        for metric, describe in list(self._left.items()):
            if text := describe(list(self._window)):
                self._note(f"at step {event.step}: {text}")
                del self._left[metric]


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
