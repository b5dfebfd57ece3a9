"""Environment defaults of a Lockstep process, set before torch is imported.

Variables that the user has set stay. Children inherit the environment. Bits depend on the number of
threads, so a run records it and keeps it (`lockstep.run.folder.machine`).
"""

from __future__ import annotations

import ctypes
import gc
import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MOST_THREADS = 8
"""Limit on threads: more are slower for models trained on a CPU; OMP_NUM_THREADS overrides it."""

THREADS = "OMP_NUM_THREADS"
"""Environment variable for the threads of torch and numpy."""

ENDS_WITH = "LOCKSTEP_ENDS_WITH"
"""Environment variable with the id of the parent process, if this one must end with it."""

_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG

_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_HUB_MAY_BE_ASKED = "LOCKSTEP_HUB_MAY_BE_ASKED"
"""Tells child processes that Lockstep, not the user, set the first of these variables."""


_GIVEN_THREADS = os.environ.get(THREADS)

_HEAVY = ("torch._C",)
"""Modules that create a million objects."""

_KEPT_BYTES = 1 << 28
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3  # a parameter of glibc's mallopt
_MALLOC = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")

_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_PROCESSORS = Path("/proc/cpuinfo")


def limit_threads() -> None:
    """Limits the threads of torch and numpy, and makes waiting threads release their core soon.

    Threads that spin for long while they wait starve a busy machine.
    """
    os.environ.setdefault(THREADS, str(usual_threads()))
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def fix_order_of_sums() -> None:
    """Makes Intel's MKL sum in one order for any number of rows and threads.

    Exact kernels need this. MKL does so only on request; the speed is the same (LOG.md). On other
    vendors' processors it has one order anyway.
    """
    try:
        with _PROCESSORS.open(encoding="utf-8") as file:
            is_intel = "GenuineIntel" in file.read(200)
    except OSError:
        return
    if is_intel:
        os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")


def stay_offline() -> None:
    """Keeps libraries from contacting the Hugging Face Hub about models that are folders."""
    if not any(name in os.environ for name in _OFFLINE):
        os.environ |= {_OFFLINE[0]: "1", _HUB_MAY_BE_ASKED: "1"}


def may_ask_hub() -> bool:
    """True if the user allows programs on this machine to contact the Hugging Face Hub."""
    offline = {os.environ.get(name, "").upper() for name in _OFFLINE}
    if os.environ.get(_HUB_MAY_BE_ASKED) == "1":
        return True
    return offline.isdisjoint(("1", "ON", "YES", "TRUE"))


def keep_freed_memory() -> None:
    """Keeps up to 256 MiB of freed memory for the next tensors, here and in child processes.

    glibc would return it to the system after each backward pass, and the next pass would fault in
    every page again: 7 % of a step of a small model.
    """
    for name in _MALLOC:
        os.environ.setdefault(name, str(_KEPT_BYTES))  # for children: glibc reads it at startup
    if sys.platform != "linux" or not hasattr(libc := ctypes.CDLL(None), "mallopt"):
        return
    for option, name in zip((_TRIM_THRESHOLD, _MMAP_THRESHOLD), _MALLOC, strict=True):
        # like glibc, ignore values that are not numbers
        if re.fullmatch("[0-9]{1,9}", os.environ[name]):
            libc.mallopt(option, int(os.environ[name]))


@contextmanager
def spare_modules() -> Iterator[None]:
    """Excludes what the block imports from garbage collection, during the block, later and at exit.

    Modules stay loaded. torch and transformers make a million objects, and scanning them took a
    third of a command's CPU time. If torch is loaded already, the process is a user's program or a
    test, whose objects may be garbage.
    """
    if not sys.modules.keys().isdisjoint(_HEAVY) or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def end_with_parent() -> None:
    """Makes Linux send SIGTERM to this process when the process in `ENDS_WITH` ends."""
    parent = os.environ.pop(ENDS_WITH, "")
    if parent and sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGTERM)
        if os.getppid() != int(parent):
            os.kill(os.getpid(), signal.SIGTERM)


def usual_threads() -> int:
    """Number of threads: one per usable core, at most `MOST_THREADS`."""
    return min(count_cores(), MOST_THREADS)


def read_given_threads() -> int | None:
    """The number of threads that the user set; None if unset or not a number."""
    if _GIVEN_THREADS is not None and _GIVEN_THREADS.isdecimal():
        return int(_GIVEN_THREADS)
    return None


def count_cores() -> int:
    """Number of cores that this process may use, at least one: its affinity and CPU quota."""
    cores = len(os.sched_getaffinity(0))
    try:
        share, period = _QUOTA.read_text(encoding="utf-8").split()
    except (OSError, ValueError):
        return cores
    if share == "max":
        return cores
    return max(1, min(cores, int(share) // int(period)))
