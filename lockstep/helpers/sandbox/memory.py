"""The memory of a program and all its processes: bounded by a cgroup if one can be made here, otherwise by polls.

A cgroup counts shared pages, files in memory and what the kernel holds for a program. Polls count the pages of each
process and the files in its /tmp; system calls that could hold other memory are refused (see `seccomp`).
"""

from __future__ import annotations

import itertools
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from lockstep.helpers.descendants import find_descendants

_CGROUPS = Path("/sys/fs/cgroup")
_TMP_FILES = 1024
_REMOVE_S = 5.0
_NUMBERS = itertools.count()


@contextmanager
def open_cgroup(limit_mb: int) -> Iterator[Path | None]:
    """Makes a cgroup of limited memory, which has no process after the block; yields None if that is not possible."""
    folder = _make_cgroup(limit_mb << 20)
    try:
        yield folder
    finally:
        if folder is not None:
            _remove(folder)


def _make_cgroup(limit: int) -> Path | None:
    name = f"lockstep-{os.getpid()}-{next(_NUMBERS)}"
    for line in _read("/proc/self/cgroup").splitlines():
        _, controllers, own = line.split(":", 2)
        if controllers == "memory":  # version 1
            folder = _CGROUPS / "memory" / own.lstrip("/") / name
            limits = {"memory.limit_in_bytes": limit, "memory.memsw.limit_in_bytes": limit}
        else:  # version 2, where one that has processes has no others in it
            folder = _CGROUPS / os.path.dirname(own).lstrip("/") / name
            limits = {"memory.max": limit, "memory.swap.max": 0, "memory.oom.group": 1}
        if controllers in ("memory", "") and _set_limits(folder, limits):
            return folder
    return None


def _set_limits(folder: Path, limits: dict[str, int]) -> bool:
    """Makes a cgroup and sets its limits, of which the first must be known here; False if that is not possible."""
    known: list[Path] = []
    try:
        folder.mkdir()
        known = [folder / name for name in limits if (folder / name).exists()]
        for file in known:
            file.write_text(str(limits[file.name]), encoding="utf-8")
    except OSError:
        known = []
    if known and known[0].name == next(iter(limits)):
        return True
    _remove(folder)
    return False


def _remove(folder: Path) -> None:
    deadline = time.monotonic() + _REMOVE_S
    while folder.exists() and time.monotonic() < deadline:
        try:
            folder.rmdir()
        except OSError:  # the kernel still ends its processes
            time.sleep(0.001)


def watch(process: int, limit_mb: int, cgroup: Path | None, own_tmp: bool) -> Callable[[], bool]:
    """Returns a function that says whether a process and all that it has started hold too much.

    Args:
        process: The process.
        limit_mb: Memory that they may hold.
        cgroup: The cgroup that limits it; None: it is polled.
        own_tmp: True if they have a private /tmp, with a limit on its files.
    """

    def exceeds() -> bool:
        found = [process, *find_descendants(process)]
        if cgroup is None and sum(map(_count_kb, found)) > limit_mb << 10:
            return True
        if cgroup is not None and _has_run_out(cgroup):
            return True
        return own_tmp and any(map(_has_many_files, found[2:3]))  # the first two are bubblewrap's

    return exceeds


def _has_run_out(cgroup: Path) -> bool:
    """True if a process was killed for want of memory; the others may wait for it."""
    events = _read(f"{cgroup}/memory.events") + _read(f"{cgroup}/memory.oom_control")
    return re.search(r"^oom_kill [1-9]", events, re.MULTILINE) is not None


def _count_kb(process: int) -> int:
    """Memory that a process holds, in the swap too, without that of files on a disk."""
    fields = dict(line.split(":", 1) for line in _read(f"/proc/{process}/status").splitlines())
    return sum(int(fields[name].split()[0]) for name in ("RssAnon", "RssShmem", "VmSwap") if name in fields)


def _has_many_files(process: int) -> bool:
    try:
        found = os.statvfs(f"/proc/{process}/root/tmp")
    except OSError:  # it has ended
        return False
    return found.f_files - found.f_ffree > _TMP_FILES


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:  # the process has ended
        return ""
