"""Polls the memory of a program's processes and the number of its files in /tmp.

System calls that could hold other memory are blocked (see `seccomp`), and the size of /tmp is
limited.
"""

from __future__ import annotations

import os
from pathlib import Path

from lockstep.helpers.descendants import find_descendants

_TMP_FILES = 1024


def exceeds_limits(process: int, limit_mb: int) -> bool:
    """True if a process and its descendants exceed the limits on memory or files in /tmp."""
    found = [process, *find_descendants(process)]
    return sum(map(_count_kb, found)) > limit_mb << 10 or any(map(_has_many_files, found))


def _count_kb(process: int) -> int:
    """Memory of a process, including swap, without file-backed memory."""
    try:
        status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    except OSError:  # the process has ended
        return 0
    fields = dict(line.split(":", 1) for line in status.splitlines())
    return sum(
        int(fields[name].split()[0]) for name in ("RssAnon", "RssShmem", "VmSwap") if name in fields
    )


def _has_many_files(process: int) -> bool:
    """True if a process has too many files in its private /tmp."""
    tmp = f"/proc/{process}/root/tmp"
    try:
        if os.stat(tmp).st_dev == os.stat("/tmp").st_dev:
            return False
        found = os.statvfs(tmp)
    except OSError:  # the process has ended
        return False
    return found.f_files - found.f_ffree > _TMP_FILES
