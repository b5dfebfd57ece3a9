"""Notes about data on standard error; a live display shows them above its bar."""

from __future__ import annotations

import sys

from lockstep.system.printable import print_text


def print_note(text: str) -> None:
    """Prints a note."""
    print_text(f"note: {text}", file=sys.stderr)
