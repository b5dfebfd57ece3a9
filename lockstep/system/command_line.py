"""Command lines in messages, which can be copied and run. Imports no torch."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

_MAIN = Path(__file__).parents[1] / "__main__.py"


def format_command(*words: object) -> str:
    """`lockstep` with these words, quoted for a shell."""
    return shlex.join(["lockstep", *map(str, words)])


def repeat_command(*more: object) -> str | None:
    """This process's command with more words appended; None if another program imports Lockstep."""
    started = Path(sys.argv[0] if sys.argv else "")
    if started.name == "lockstep" or started == _MAIN:
        return format_command(*sys.argv[1:], *more)
    return None
