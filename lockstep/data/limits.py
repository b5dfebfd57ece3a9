"""Limits on what strangers wrote and this process runs: chat templates, which are programs, and tokenizers.

A template has limits of time and memory, a tokenizer one of time and one of characters, which stands for memory: its
library ends the process if it gets none. A template's memory is limited in the main thread alone, since the system
knows only a limit of the whole process: one that another thread set would end the training beside it.
"""

from __future__ import annotations

import ctypes
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from lockstep.background import run_in_background, wait_for_all

T = TypeVar("T")

MOST_BYTES = 1 << 30
"""More than a template may ask for at once."""

_TEMPLATE_S = 5.0
_LOOK_S = 0.5
_TOKENIZER_S = 60.0
_CHARACTERS_A_SECOND = 10_000  # a slow tokenizer on a busy machine; usual is a million
_MEMORY = Path("/proc/self/statm")


@contextmanager
def limit_time() -> Iterator[None]:
    """Raises TimeoutError in a block of Python that computes for too long, in any thread."""
    if threading.current_thread() is threading.main_thread():
        with _limit_by_signal():
            yield
        return
    try:
        with _limit_by_watcher():
            yield
    except TimeoutError as error:
        raise _late_error() from error


@contextmanager
def limit_memory() -> Iterator[None]:
    """Raises MemoryError in a block that asks for a large piece of memory; in the main thread only."""
    if threading.current_thread() is not threading.main_thread() or not _MEMORY.is_file():
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = int(_MEMORY.read_text(encoding="utf-8").split()[0]) * resource.getpagesize() + MOST_BYTES
    unlimited = resource.RLIM_INFINITY
    resource.setrlimit(resource.RLIMIT_AS, (limit if soft == unlimited else min(limit, soft), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def tokenize_in_time(tokenize: Callable[[], T], characters: int) -> T:
    """Calls a function that tokenizes so many characters.

    The call itself cannot be ended; its thread does not keep the process alive.

    Raises:
        TimeoutError: It takes too long.
    """
    limit_s = _TOKENIZER_S + characters / _CHARACTERS_A_SECOND
    call = run_in_background(tokenize)
    if not wait_for_all([call], limit_s):
        raise TimeoutError(f"it takes more than {limit_s:.0f} s")
    return call.result()


@contextmanager
def _limit_by_signal() -> Iterator[None]:
    before = signal.signal(signal.SIGVTALRM, _stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, _TEMPLATE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@contextmanager
def _limit_by_watcher() -> Iterator[None]:
    """Has another thread watch the processor time of this one, which no signal reaches, and raise the error here."""
    watched = threading.get_ident()
    clock = time.pthread_getcpuclockid(watched)
    end_s = time.clock_gettime(clock) + _TEMPLATE_S
    left, raised = threading.Event(), threading.Event()
    leaving = threading.Lock()

    def watch() -> None:
        while not left.wait(_LOOK_S):
            with leaving:
                if not left.is_set() and time.clock_gettime(clock) > end_s:
                    raised.set()
                    _raise_in(watched, TimeoutError)
                    return

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        with leaving:
            left.set()
        if raised.is_set():
            _take_back(watched)


def _raise_in(thread: int, error: type[Exception]) -> None:
    """Raises an error in a thread, at its next line of Python, in place of one that has not arrived."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))


class _TakenBackError(Exception):
    """Arrives in place of an error that was raised at the last moment and must not arrive elsewhere."""


def _take_back(thread: int) -> None:
    """Removes an error that has not arrived in this thread.

    Python can take one back by itself (`None`), but 3.11 then keeps a flag set for the whole process: all of it is
    slower from then on, and hangs if it is profiled or debugged.
    """
    try:
        _raise_in(thread, _TakenBackError)
        for _ in range(1_000_000):
            pass
    except _TakenBackError:
        pass


def _stop(signum: int, frame: object) -> None:
    raise _late_error()


def _late_error() -> TimeoutError:
    return TimeoutError(f"it takes more than {_TEMPLATE_S:g} s")
