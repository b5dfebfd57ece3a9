"""Memory available on this machine, within the limits of its control group."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")
_MEMORY = Path("/proc/meminfo")


@dataclass(frozen=True)
class _MemoryLimit:
    """Memory limit of a control group.

    Attributes:
        limit: Bytes.
        free: Bytes that its processes may still take, including file cache, which can be reclaimed.
    """

    limit: int
    free: int


def total_bytes() -> int:
    """Total memory for processes on this machine."""
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([installed, *(found.limit for found in _list_limits())])


def free_bytes() -> int:
    """Memory that is still free on this machine; 0 if the system does not report it."""
    lines = _read_text(_MEMORY).splitlines()
    available = next(
        (int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), 0
    )
    return min([available, *(max(found.free, 0) for found in _list_limits())])


def _list_limits() -> Iterator[_MemoryLimit]:
    """Limits of this process's control group (version 2) and its parent groups."""
    line = next(
        (line for line in _read_text(_OWN_GROUPS).splitlines() if line.startswith("0::")), None
    )
    if line is None:
        return
    own = _GROUPS / line.removeprefix("0::").lstrip("/")
    for folder in (own, *own.parents):
        limit = _read_text(folder / "memory.max").strip()
        taken = _read_text(folder / "memory.current").strip()
        if limit.isdigit() and taken.isdigit():
            fields = dict(
                line.split(" ", 1) for line in _read_text(folder / "memory.stat").splitlines()
            )
            yield _MemoryLimit(
                int(limit), int(limit) - int(taken) + int(fields.get("inactive_file", "0"))
            )
        if folder == _GROUPS:
            return


def _read_text(file: Path) -> str:
    """The text of a system file; empty if unreadable."""
    try:
        return file.read_text(encoding="utf-8")
    except OSError:
        return ""
