"""The command line as it was started, so that a command in a message can be copied and run. Imports no torch."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

_MAIN = Path(__file__).parents[1] / "__main__.py"


def command(*words: object) -> str:
    """`lockstep` with these words, quoted where a shell needs it, under the name by which this process was started.

    Started as `.venv/bin/lockstep`, it is that; where a shell finds `lockstep` by itself, the plain name; and for
    another program that imports the package, the command beside its Python.
    """
    return shlex.join([*_program(), *map(str, words)])


def repeat_command(*more: object) -> str | None:
    """The command of this process, with more words behind it; None where another program imports the package."""
    started = Path(sys.argv[0] if sys.argv else "")
    return command(*sys.argv[1:], *more) if started.name == "lockstep" or started == _MAIN else None


def _program() -> tuple[str, ...]:
    started = sys.argv[0] if sys.argv else ""
    if Path(started) == _MAIN:
        return sys.orig_argv[0], "-m", "lockstep"
    if Path(started).name != "lockstep":
        beside = Path(sys.executable).with_name("lockstep")
        started = str(beside) if beside.is_file() else "lockstep"
    return ("lockstep",) if shutil.which("lockstep") == started else (started,)
