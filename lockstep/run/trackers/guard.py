"""A guard around views: one that fails does not stop the run or slow it down for long, and the user is told."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lockstep.errors import InputError
from lockstep.fault_policy import POLICY
from lockstep.run.trackers.base import Outcome
from lockstep.run.trackers.view import View

_PAUSE_PER_FAILURE = 9.0  # times as long as the failure took: a dead server costs at most a tenth of the run's time


class Guarded:
    """A tracker that forwards to a view, counts the entries that the view missed, and says so once."""

    def __init__(
        self, name: str, view: View, note: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name, self._view, self._note, self._clock = name, view, note, clock
        self._again_at = -math.inf
        self._open = False
        self._missed = 0

    def rewind(self, step: int) -> None:
        """Opens the view, and notes where it is.

        Raises:
            ValueError: If it cannot be opened and the run has not trained yet: better to stop than to train unseen.
        """
        try:
            self._view.rewind(step)
        except Exception as error:
            sentence = f"trackers.{self._name} cannot be opened: {_describe_error(error)}"
            if step < 0:
                raise InputError(f"{sentence}; mend that, or take it out of the recipe") from error
            self._again_at = math.inf
            self._note(f"{sentence}; the run continues without it, and its own files have everything")
            return
        self._open = True
        self._note(f"{self._name}: {self._view.where}")

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self._tell(lambda: self._view.metrics(step, values))

    def timings(self, step: int, seconds: Mapping[str, float]) -> None:
        self._tell(lambda: self._view.timings(step, seconds))

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        self._tell(lambda: self._view.samples(step, rows))

    def close(self, outcome: Outcome) -> None:
        """Closes the view where it is open, and says how much it missed."""
        if self._open:
            self._again_at = -math.inf
            self._tell(lambda: self._view.close(outcome))
        if self._missed:
            self._note(f"{self._name} missed {self._missed} entries; the run's own files have them")

    def _tell(self, call: Callable[[], None]) -> None:
        start = self._clock()
        if start < self._again_at:
            self._missed += 1
            return
        try:
            call()
        except Exception as error:
            now = self._clock()
            self._again_at = now + max(*POLICY["tracker"].waits_s, _PAUSE_PER_FAILURE * (now - start))
            self._missed += 1
            if self._missed == 1:
                self._note(
                    f"{self._name} failed: {_describe_error(error)}; the run continues, and its own files "
                    "have everything"
                )


def _describe_error(error: Exception) -> str:
    """The error in one line, without a user and a password that stood in an address."""
    text = " ".join(str(error).split()) or type(error).__name__
    return re.sub(r"//[^/@\s]+@", "//", text)[:300]
