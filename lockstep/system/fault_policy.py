"""Fault policy: for each source of faults, the number of retries, their waits, and the outcome.

Everything that retries uses `RetryCounter` with the table `POLICY`
(docs/adr/0035-one-fault-policy.md).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

_SELDOM_S = 60.0
"""Minimum seconds between two lines of `RateLimitedNote`."""

FaultSource = Literal["disk", "server", "reward", "helper", "worker"]


@dataclass(frozen=True)
class RetryPolicy:
    """Retries for one source of faults.

    Attributes:
        waits_s: Waits before each retry; the last one repeats.
        limit: Number of retries; None if an option of the recipe sets it, or if it is unlimited.
        again: Describes a retry in messages; empty if users do not see it.
    """

    waits_s: tuple[float, ...]
    limit: int | None
    again: str = ""


# "Then" is what happens after the last attempt.
POLICY: dict[FaultSource, RetryPolicy] = {
    # A transient disk error. Then: one sentence, and saved data stays; an unreadable checkpoint
    # is skipped for the previous one; a failed removal is reported.
    "disk": RetryPolicy((0.1, 0.4, 1.6), 3),
    # A server is lost, late, busy or silent. Then: no verdict for a judge's question, else one
    # sentence.
    "server": RetryPolicy((0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0), None, "asking again"),
    # A reward function loses a connection. Then: one sentence.
    "reward": RetryPolicy((1.0, 5.0, 30.0), 3, "calling it again"),
    # The system kills a helper's process. Then: one sentence.
    "helper": RetryPolicy((0.0,), 1, "starting it again"),
    # A learner's or sampler's process dies or hangs. Then: one sentence.
    "worker": RetryPolicy((0.0, 1.0, 5.0), None, "resuming from the newest checkpoint"),
}


class RetryCounter:
    """Counts attempts at an action, waits before each retry, and informs the user.

    Args:
        source: Source of the faults, a key of `POLICY`.
        note: Shows the user what failed and what happens next.
        limit: Number of retries, if a recipe sets it.

    Attributes:
        used: Number of retries so far.
    """

    def __init__(
        self,
        source: FaultSource,
        note: Callable[[str], object] = lambda text: None,
        limit: int | None = None,
    ) -> None:
        self._persistence = POLICY[source]
        self._note = note
        self.limit = self._persistence.limit if limit is None else limit
        self.used = 0

    def next_wait(self, fault: str = "", least_s: float = 0.0) -> float | None:
        """Reports a fault; returns the seconds until the retry, or None if no retries are left.

        The wait is at least `least_s`.
        """
        if self.limit is not None and self.used >= self.limit:
            return None
        wait_s = max(
            self._persistence.waits_s[min(self.used, len(self._persistence.waits_s) - 1)], least_s
        )
        self.used += 1
        if self._persistence.again:
            pause = f" in {wait_s:g} s" if wait_s else ""
            if self.limit is None:
                most = ""
            else:
                most = f" ({self.used} of {self.limit} times)"
            self._note(f"{fault}; {self._persistence.again}{pause}{most}")
        return wait_s

    def wait_for_retry(self, fault: str = "") -> bool:
        """Reports a fault and waits for the retry; False if no retries are left."""
        wait_s = self.next_wait(fault)
        if wait_s:
            time.sleep(wait_s)
        return wait_s is not None


class RateLimitedNote:
    """Shows the first line, then at most one line per minute, and drops the others.

    Args:
        note: Shows the user a line.
    """

    def __init__(self, note: Callable[[str], object]) -> None:
        self._note = note
        self._told_s = -math.inf

    def __call__(self, text: str) -> None:
        now_s = time.monotonic()
        if now_s - self._told_s >= _SELDOM_S:
            self._told_s = now_s
            self._note(text)
