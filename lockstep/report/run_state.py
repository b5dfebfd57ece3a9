"""The state of a run according to its folder: running, finished, died or stopped."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lockstep.report.log import CRASH, LOCK
from lockstep.system.records import is_file

StateWord = Literal["running", "finished", "died", "stopped", "not finished"]

_LOCKS = Path("/proc/locks")


@dataclass(frozen=True)
class RunState:
    """The state of a run.

    Attributes:
        word: State in a word; `stopped` means interrupted or killed, `not finished` means unknown.
        text: Details; the error of a run that died.
    """

    word: StateWord
    text: str = ""


def read_state(folder: Path) -> RunState:
    """Reads the state from the run's lock, its final model and its crash report."""
    if (folder / "final").exists():
        return RunState("finished")
    held = is_locked(folder)
    if held:
        return RunState("running")
    crash = folder / CRASH
    if is_file(crash):
        error = ""
        for line in crash.read_text(encoding="utf-8", errors="replace").splitlines():
            # notes on phase and step follow the error
            if line.strip() and not line.startswith((" ", "phase:")):
                error = line.strip()
        return RunState("died", error)
    if held is None:
        return RunState("not finished")
    return RunState("stopped", "the same command resumes it")


def is_locked(folder: Path) -> bool | None:
    """True if a process on this machine holds the run's lock; None if unknown or no lock.

    The lock is only inspected, never acquired: an attempt could block a run that is starting.
    """
    try:
        held = _LOCKS.read_text(encoding="ascii")
        inode = os.stat(folder / LOCK).st_ino
    except OSError:
        return None
    for line in held.splitlines():
        fields = line.split()
        is_flock = fields[1:2] == ["FLOCK"] and len(fields) > 5
        if is_flock and fields[5].rsplit(":", 1)[-1] == str(inode):
            return True
    return False
