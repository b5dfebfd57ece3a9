"""Finds and ends the descendant processes of a helper, on Linux."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

_POLL_S = 0.005
_SET_SUBREAPER = 36


def adopt_orphans() -> None:
    """Makes this process the parent of orphaned descendants, on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_SUBREAPER, 1, 0, 0, 0)


def find_children(process: int) -> list[int]:
    """Finds the processes that a process has started or adopted."""
    found: list[int] = []
    with contextlib.suppress(OSError):  # the process may have ended
        for thread in os.listdir(f"/proc/{process}/task"):
            found += map(
                int,
                Path(f"/proc/{process}/task/{thread}/children").read_text(encoding="utf-8").split(),
            )
    return found


def find_descendants(process: int) -> Iterator[int]:
    """Finds all descendants of a process."""
    for child in find_children(process):
        yield child
        yield from find_descendants(child)


def end_children() -> None:
    """Kills descendants until none is left; orphans must become this process's children."""
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        kill_all(find_children(os.getpid()))
        time.sleep(_POLL_S)


def kill_all(processes: Iterable[int]) -> None:
    """Kills processes; some may already have ended."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
