"""Work in background threads that neither delay an interrupt nor keep a process alive."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from threading import Thread
from typing import TypeVar

T = TypeVar("T")

SIGNAL_CHECK_S = 0.5
"""Longest single wait of the main thread.

A signal that arrives just before the thread blocks does not wake it: Python raises
`KeyboardInterrupt` only after the call has returned.
"""


def run_in_background(work: Callable[[], T]) -> Future[T]:
    """Calls `work` in a daemon thread, so that an interrupted process can exit if it hangs.

    Returns:
        Its result or its exception.
    """
    future: Future[T] = Future()

    def store_result() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # raised for the caller when it takes the result
            future.set_exception(error)

    Thread(target=store_result, daemon=True).start()
    return future


def wait_for_all(futures: Sequence[Future[T]], limit_s: float = math.inf) -> set[Future[T]]:
    """Waits until all are done, one has raised, or the time is up; interrupts end the wait.

    Returns:
        The futures that are done.
    """
    end_s = time.monotonic() + limit_s
    while True:
        left_s = end_s - time.monotonic()
        state = wait(futures, max(0.0, min(SIGNAL_CHECK_S, left_s)), FIRST_EXCEPTION)
        if (
            left_s <= 0
            or not state.not_done
            or any(future.exception() is not None for future in state.done)
        ):
            return state.done
