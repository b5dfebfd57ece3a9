"""A hook that warns, while a run trains, of rewards that are earned in a way that the task does not mean."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from lockstep.algorithms.step import StepEvent
from lockstep.report.alarms import WINDOW, WINDOW_RULES


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
