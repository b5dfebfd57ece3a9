"""Limits on chat templates, which are programs that strangers wrote and this process runs.

A template has limits of time and memory, in the main thread alone: the system knows only a limit on the memory of the
whole process, and a signal reaches only the main thread, in which every template is rendered first.
"""

from __future__ import annotations

import resource
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MOST_BYTES = 1 << 30
"""More than a template may ask for at once."""

_TEMPLATE_S = 5.0
_MEMORY = Path("/proc/self/statm")


@contextmanager
def limit_template() -> Iterator[None]:
    """Limits a block in the main thread.

    Raises:
        TimeoutError: The block computes for too long.
        MemoryError: It asks for a large piece of memory.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGVTALRM, _stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, _TEMPLATE_S)
    if _MEMORY.is_file():
        limit = int(_MEMORY.read_text(encoding="utf-8").split()[0]) * resource.getpagesize() + MOST_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit if soft == resource.RLIM_INFINITY else min(limit, soft), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _stop(signum: int, frame: object) -> None:
    raise TimeoutError(f"it takes more than {_TEMPLATE_S:g} s")
