"""The one fault policy: for each source of faults whether, when and how often it is tried again, and what is done then.

Everything that tries again does so through `Attempts`, by a rule of the table `POLICY` (docs/adr/0035-one-fault-policy.md).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Source = Literal[
    "disk", "checkpoint", "cleanup", "lock", "server", "reward", "helper", "sampler", "ranks", "tracker", "run"
]
"""The disk's own calls; a checkpoint that is read; what is removed; a warm start that another process trains; a server; a
reward function's own faults; the process of a helper; that of a sampler; those of learners; a tracker; the whole run."""

Then = Literal["give up", "pass over", "note"]
"""Ends in one sentence, and what is saved stays; takes the one before, and says so; goes on without it, and says so."""


@dataclass(frozen=True)
class Rule:
    """What is done about the faults of one source.

    Attributes:
        then: What is done when there are no more attempts.
        waits_s: Waits before each further attempt; the last is repeated.
        limit: Further attempts; None: an option of the recipe says how many, or it is as many as it takes.
        again: What a further attempt is, in the words of a message; empty: too short to be told.
    """

    then: Then
    waits_s: tuple[float, ...] = ()
    limit: int | None = 0
    again: str = ""


POLICY: dict[Source, Rule] = {
    "disk": Rule("give up", (0.1, 0.4, 1.6), 3),
    "checkpoint": Rule("pass over", (0.1, 0.4, 1.6), 3),
    "cleanup": Rule("note", (0.1, 0.4, 1.6), 3),
    "lock": Rule("give up", (0.5,), None),
    "server": Rule("note", (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0), None, "asking again"),
    "reward": Rule("give up", (1.0, 5.0, 30.0), 3, "calling it again"),
    "helper": Rule("give up", (0.0,), 1, "starting it again"),
    "sampler": Rule("give up", (0.0, 1.0, 5.0), None, "starting it again"),
    "ranks": Rule("give up", (0.0, 1.0, 5.0), None, "resuming from the newest checkpoint"),
    "tracker": Rule("note", (60.0,), None),
    "run": Rule("give up", (1.0, 5.0, 30.0, 120.0), 5, "the same command again"),
}
"""A lock ends with the time of its run; a server is noted where its answer can be missed, as a judge's, else given up."""


class Attempts:
    """Counts the attempts at something, waits before each further one, and tells the user.

    Args:
        source: Whose rule holds.
        note: Is told what failed and what is done about it.
        limit: Further attempts, where a recipe says how many.

    Attributes:
        used: Further attempts so far.
    """

    def __init__(
        self, source: Source, note: Callable[[str], object] = lambda text: None, limit: int | None = None
    ) -> None:
        self._rule, self._note = POLICY[source], note
        self.limit = self._rule.limit if limit is None else limit
        self.used = 0

    def renew(self) -> None:
        """Counts anew, after something has been achieved."""
        self.used = 0

    def next_wait(self, fault: str = "") -> float | None:
        """Tells of a fault; returns the seconds until the next attempt, None where there is none."""
        if self.limit is not None and self.used >= self.limit:
            return None
        wait_s = self._rule.waits_s[min(self.used, len(self._rule.waits_s) - 1)]
        self.used += 1
        if self._rule.again:
            pause = f" in {wait_s:g} s" if wait_s else ""
            most = "" if self.limit is None else f" ({self.used} of {self.limit} times)"
            self._note(f"{fault}; {self._rule.again}{pause}{most}")
        return wait_s

    def again(self, fault: str = "") -> bool:
        """Tells of a fault and waits for the next attempt; False where there is none."""
        wait_s = self.next_wait(fault)
        if wait_s:
            time.sleep(wait_s)
        return wait_s is not None


class Seldom:
    """Tells the first line and then, of those that come, at most one a minute.

    Args:
        note: Shows the user a line.
        every_s: The minute.
    """

    def __init__(self, note: Callable[[str], object], every_s: float = 60.0) -> None:
        self._note, self._every_s = note, every_s
        self._told_s = -math.inf

    @property
    def is_due(self) -> bool:
        """True if a line would be told."""
        return time.monotonic() - self._told_s >= self._every_s

    def __call__(self, text: str) -> None:
        if self.is_due:
            self._told_s = time.monotonic()
            self._note(text)
