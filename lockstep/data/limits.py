"""Limits on untrusted chat templates, which are programs, and on tokenizers.

Templates have limits on time and memory, only in the main thread: the system limits memory only per
process, and signals reach only the main thread, in which every template is rendered first.
Tokenizers have limits on time and on characters, which stand for memory: the library aborts the
process if an allocation fails.
"""

from __future__ import annotations

import resource
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from lockstep.system.background import run_in_background, wait_for_all

T = TypeVar("T")

MOST_BYTES = 1 << 30
"""Largest single allocation of a template."""

_TEMPLATE_S = 5.0
_TOKENIZER_S = 60.0
_CHARACTERS_A_SECOND = 10_000  # a slow tokenizer on a busy machine; a million is typical
_MEMORY = Path("/proc/self/statm")


@contextmanager
def limit_template() -> Iterator[None]:
    """Limits a block in the main thread.

    Raises:
        TimeoutError: The block takes too long.
        MemoryError: It allocates too much memory.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGVTALRM, _raise_timeout)
    signal.setitimer(signal.ITIMER_VIRTUAL, _TEMPLATE_S)
    if _MEMORY.is_file():
        limit = (
            int(_MEMORY.read_text(encoding="utf-8").split()[0]) * resource.getpagesize()
            + MOST_BYTES
        )
        resource.setrlimit(
            resource.RLIMIT_AS,
            (limit if soft == resource.RLIM_INFINITY else min(limit, soft), hard),
        )
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def tokenize_in_time(tokenize: Callable[[], T], characters: int) -> T:
    """Calls a tokenizing function with a time limit for `characters`.

    The call itself cannot be stopped; its thread does not keep the process alive.

    Raises:
        TimeoutError: It takes too long.
    """
    limit_s = _TOKENIZER_S + characters / _CHARACTERS_A_SECOND
    call = run_in_background(tokenize)
    if not wait_for_all([call], limit_s):
        raise TimeoutError(f"it takes more than {limit_s:.0f} s")
    return call.result()


def _raise_timeout(signum: int, frame: object) -> None:
    raise TimeoutError(f"it takes more than {_TEMPLATE_S:g} s")
