"""`lockstep train --supervise`: the same command again after a crash, until the run ends or no longer advances."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from lockstep import exit_codes
from lockstep.fault_policy import Attempts
from lockstep.printable import print_text
from lockstep.run.checkpoint import Checkpoints
from lockstep.run.messages import add_message
from lockstep.run.stop import SUPERVISED

_HEED_S = 0.5
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Supervisor:
    """Runs a command, and again after each crash, with longer waits while it does not advance.

    Args:
        command: The command line of the run.
        folder: Folder of the run.
        sleep: Waits some seconds.
    """

    def __init__(self, command: Sequence[str], folder: Path, sleep: Callable[[float], object] = time.sleep) -> None:
        self._command, self._folder, self._sleep = command, folder, sleep
        self._child: subprocess.Popen[bytes] | None = None
        self._asked_to_stop: int | None = None

    def run(self) -> int:
        """Returns the exit code of the last process."""
        before = {number: signal.signal(number, self._forward) for number in _FORWARDED}
        try:
            return self._run()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _run(self) -> int:
        attempts, saved, restarts = Attempts("run", self._tell), self._newest(), 0
        while True:
            code = self._run_once()
            if self._asked_to_stop is not None or not is_crash(code):
                if restarts:
                    self._tell(f"the run was restarted {restarts} times; {self._folder}/messages.jsonl says why")
                return code if code >= 0 else 128 - code
            newest = self._newest()
            if newest > saved:  # a run that advances is restarted as often as it takes
                attempts.renew()
            saved = max(saved, newest)
            after = f"after step {saved}, the newest that is saved" if saved >= 0 else "before anything was saved"
            wait_s = attempts.next_wait(f"{_describe(code)} {after}")
            if wait_s is None:
                self._tell(f"{_describe(code)} {after}, {attempts.used} times in a row; the run is not restarted")
                return exit_codes.CRASH
            restarts += 1
            self._wait(wait_s)
            if self._asked_to_stop is not None:
                return 128 + self._asked_to_stop

    def _run_once(self) -> int:
        """Runs the command to its end, in a group of its own, so that Ctrl-C reaches it once. Returns its exit code."""
        environment = {**os.environ, SUPERVISED: "1"}
        with subprocess.Popen(self._command, start_new_session=True, env=environment) as self._child:
            if self._asked_to_stop is not None:  # while the process started
                self._child.send_signal(self._asked_to_stop)
            return self._child.wait()

    def _wait(self, seconds: float) -> None:
        """Waits, in short steps: Python sleeps to the end although a signal has asked for a stop."""
        for _ in range(math.ceil(seconds / _HEED_S)):
            if self._asked_to_stop is None:
                self._sleep(_HEED_S)

    def _forward(self, number: int, frame: FrameType | None) -> None:
        self._asked_to_stop = number
        if self._child is not None and self._child.returncode is None:
            self._child.send_signal(number)

    def _newest(self) -> int:
        """Step of the newest checkpoint; -1 where there is none, or the disk does not say."""
        try:
            found = Checkpoints(self._folder / "checkpoints", keep=1).find()
        except OSError:
            return -1
        return found[-1][0] if found else -1

    def _tell(self, text: str) -> None:
        print_text(f"supervise: {text}", file=sys.stderr)
        if self._folder.is_dir():
            add_message(self._folder, None, f"supervise: {text}")


def is_crash(code: int) -> bool:
    """True for an exit code after which the same command may do better; a signal is negative, as in `subprocess`."""
    return code == exit_codes.CRASH or code < 0


def _describe(code: int) -> str:
    if code >= 0:
        return f"the process ended with {code}"
    named = -code in set(signal.Signals)
    return f"the process was killed by {signal.Signals(-code).name if named else f'signal {-code}'}"
