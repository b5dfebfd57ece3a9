"""Notes on the reading of data, on standard error, where a live display shows them above its bar."""

from __future__ import annotations

import sys
import time

from lockstep.system.printable import print_text

_FIRST_AFTER_S, _EVERY_S = 1.0, 5.0


def note(text: str) -> None:
    """Prints a note."""
    print_text(f"note: {text}", file=sys.stderr)


class Ticker:
    """Progress of long work: nothing during the first second, then a line every few seconds.

    Args:
        what: The work, as in "indexing rows.jsonl".
        total: Its size, in any unit.
    """

    def __init__(self, what: str, total: int) -> None:
        self._what, self._total = what, total
        self._next = time.monotonic() + _FIRST_AFTER_S

    def at(self, done: int) -> None:
        """Prints how much is done, at most every few seconds."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _EVERY_S
            print_text(f"{self._what}: {done / max(1, self._total):.0%}", file=sys.stderr)
