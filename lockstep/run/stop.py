"""Requests to stop a run early, and exit codes of commands.

Requests are Ctrl-C, SIGTERM, SIGHUP, and a deadline that is nearly over.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from lockstep.core import exit_codes
from lockstep.core.errors import LockstepError
from lockstep.system.disk import is_user_error
from lockstep.system.printable import print_status
from lockstep.system.unread import is_unread

_ASKING = {
    signal.SIGINT: ("Ctrl-C", exit_codes.INTERRUPTED),
    signal.SIGTERM: ("SIGTERM", exit_codes.TERMINATED),
    signal.SIGHUP: ("SIGHUP", exit_codes.HUNG_UP),
}
"""Signals that request a stop: their name for the user, and the exit code of the process."""


class StoppedRun(Exception):
    """A run has stopped early and was saved; the same command resumes it.

    Attributes:
        code: Exit code of the process.
    """

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class StopRequests:
    """Decides after each step whether the run continues.

    Args:
        deadline_s: Time on `clock` to stop by; None means no deadline.
        clock: A monotonic clock, in seconds.
    """

    def __init__(
        self, deadline_s: float | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._deadline_s = deadline_s
        self._clock = clock
        self._asked: tuple[str, int] | None = None
        self._since = clock()
        self._longest_s = 0.0

    def ask_to_stop(self, why: str, code: int) -> None:
        """Requests that the run end after this step."""
        self._asked = why, code

    def start_timing(self) -> None:
        """Starts timing the first step; earlier time does not count."""
        self._since = self._clock()

    def check_after_step(self) -> tuple[str, int] | None:
        """Checks for a stop; called once after each step.

        Returns the reason to stop now, and the exit code; None means continue.

        A run with a deadline stops when another step as long as the longest so far would not fit; a
        step's time includes work between steps, such as saving.
        """
        now = self._clock()
        self._longest_s = max(self._longest_s, now - self._since)
        self._since = now
        if (
            self._asked is None
            and self._deadline_s is not None
            and now + self._longest_s > self._deadline_s
        ):
            return (
                "the next step would exceed run.max_time_s",
                exit_codes.OUT_OF_TIME,
            )
        return self._asked


def restore_interrupts() -> None:
    """Restores SIGINT if the parent process ignored it, as a script does for `command &`."""
    if _in_main_thread() and signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def stop_on_signals(stop: StopRequests, note: Callable[[str], object]) -> Iterator[None]:
    """Makes the first Ctrl-C, SIGTERM or SIGHUP in the block request a stop; a second one kills.

    Signals that the process was started to ignore, such as SIGHUP under `nohup`, stay ignored.

    Args:
        stop: Receives the request.
        note: Shows the user a line.
    """
    if not _in_main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in _ASKING}
    usual = {number: handler for number, handler in handlers.items() if handler != signal.SIG_IGN}

    def request_stop(number: int, frame: FrameType | None) -> None:
        name, code = _ASKING[signal.Signals(number)]
        stop.ask_to_stop(f"{name} was received", code)
        for other, handler in usual.items():
            signal.signal(other, handler)
        text = (
            f"{name}: finishing this step, then saving; press again to stop now and lose steps "
            "since the newest checkpoint"
        )
        # In a thread: the interrupted code may itself be printing.
        threading.Thread(target=note, args=(text,)).start()

    try:
        for number in usual:
            signal.signal(number, request_stop)
        yield
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)


def _in_main_thread() -> bool:
    """True in the main thread, the only one in which Python handles signals."""
    return threading.current_thread() is threading.main_thread()


def end_with_code(command: Callable[[], int], show_traceback: bool = False) -> int:
    """Runs a command and returns its exit code; shows a user error as one sentence on stderr.

    Args:
        command: The command; returns its own code.
        show_traceback: Raise errors instead.
    """
    try:
        return command()
    except (LockstepError, OSError) as error:
        if show_traceback or (isinstance(error, BrokenPipeError) and is_unread(sys.stdout)):
            raise
        print_status(f"lockstep: {error!s}")  # it may quote an untrusted file
        if isinstance(error, LockstepError):
            return error.exit_code
        if is_user_error(error):
            return exit_codes.INPUT
        return exit_codes.CRASH
    except StoppedRun as stopped:
        print_status(f"lockstep: {stopped}")
        return stopped.code
    except KeyboardInterrupt:
        print_status(
            "lockstep: interrupted; rerun the command to resume from the newest checkpoint"
        )
        return exit_codes.INTERRUPTED
    except Exception:
        if show_traceback:
            raise
        traceback.print_exc()
        return exit_codes.CRASH
