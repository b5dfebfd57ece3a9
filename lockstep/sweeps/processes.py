"""The processes of a sweep's runs: forks of one that has imported what they need, or new programs."""

from __future__ import annotations

import ctypes
import io
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from lockstep import exit_codes
from lockstep.run.stop import STOPPING, forget_handlers

Work = Callable[[], int]
"""Work of a process; returns its exit code."""

_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
_TASKS = Path("/proc/self/task")


def can_fork() -> bool:
    """True if a fork of this process can compute: no library has started threads, of which a fork has none.

    A fork would wait forever for threads of OpenMP, for example.
    """
    return _TASKS.is_dir() and len(list(_TASKS.iterdir())) == 1


def start(work: Work, log: Path, environment: Mapping[str, str]) -> int:
    """Starts work in a fork, which is a process group of its own and ends with this process. Returns its number.

    Args:
        work: The work, which may replace the process by a program.
        log: File for all that it writes, after what is there.
        environment: Variables that differ from this process's.

    Raises:
        OSError: If its log cannot be written, or the system has room for no more processes.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    heard = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)  # none is lost between the fork and its own handlers
    parent, child = os.getpid(), -1
    try:
        child = os.fork()
    finally:
        if child:
            signal.pthread_sigmask(signal.SIG_SETMASK, heard)
    if child:
        return child
    code = exit_codes.CRASH
    try:
        os.setsid()  # Ctrl-C reaches the sweep alone, which hands it on once
        _end_with(parent)
        forget_handlers()
        os.environ.update(environment)
        _write_to(log)
        signal.pthread_sigmask(signal.SIG_SETMASK, heard)
        code = work()
    except KeyboardInterrupt:
        code = exit_codes.INTERRUPTED
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def replace_program(command: Sequence[str]) -> int:
    """Runs another program in place of this process, as the work of a fork."""
    os.execv(command[0], list(command))


def find_ended(process: int) -> int | None:
    """The exit code of a process that has ended, by a signal as shells number it; None: it still runs."""
    ended, status = os.waitpid(process, os.WNOHANG)
    if not ended:
        return None
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def send(process: int, number: signal.Signals) -> None:
    """Sends a signal to a process that this one has not waited for."""
    os.kill(process, number)


def kill_group(process: int) -> None:
    """Ends a process with all that it has started, and waits for it.

    Raises:
        ValueError: If the number is that of no single process: 0 would be the caller's own group.
    """
    if process <= 0:
        raise ValueError(f"a process to end has a number above 0, not {process}")
    try:
        os.killpg(process, signal.SIGKILL)
    except ProcessLookupError:  # it has yet to make its group
        os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)


def _end_with(parent: int) -> None:
    """Has the system ask this process to save and stop once its parent is gone; only Linux can."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGTERM)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGTERM)


def _write_to(log: Path) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for source, target in ((nothing, 0), (out, 1), (out, 2)):
        os.dup2(source, target)
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(
            io.FileIO(number, "w", closefd=False), errors="backslashreplace", write_through=True, encoding="utf-8"
        )
        for number in (1, 2)
    )
