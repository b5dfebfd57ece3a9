"""Commands run in a fork of this process, after all imports: what each costs is what it does, and no more."""

from __future__ import annotations

import contextlib
import importlib
import os
import select
import shlex
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from lockstep.cli import main

IMPORTED = (
    "lockstep.run.dry_run",
    "lockstep.run.train",
    "lockstep.inference.judge_eval",
    "lockstep.plan.command",
    "transformers.models.llama.modeling_llama",
)
LONGEST_CPU_S, LONGEST_S = 20.0, 300.0
"""A command that computes or waits longer hangs; the clock alone would count what other processes take."""


@dataclass(frozen=True)
class Outcome:
    """What became of a command.

    Attributes:
        code: Its exit code; None: it hung, and was ended.
        said: All that it printed.
        cpu_s: CPU time, of its own processes too.
    """

    code: int | None
    said: str
    cpu_s: float

    @property
    def sentence(self) -> str:
        """What is said of an input that is refused."""
        return self.said[self.said.rfind("lockstep: ") :] if "lockstep: " in self.said else ""


def import_all() -> None:
    """Imports what the commands import, once for all forks."""
    for name in IMPORTED:
        importlib.import_module(name)


def run_command(command: str | Sequence[str], folder: Path) -> Outcome:
    """Runs `lockstep` with these arguments in a folder."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        _be_command(shlex.split(command) if isinstance(command, str) else list(command), folder, writing)
    os.close(writing)
    try:
        return _wait(child, reading)
    finally:
        os.close(reading)
        _end_group(child)


def _be_command(arguments: list[str], folder: Path, output: int) -> None:
    """Never returns."""
    code = 1
    try:
        os.setsid()
        os.chdir(folder)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False, errors="backslashreplace")
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False, errors="backslashreplace")
        torch.set_num_threads(1)
        code = main(arguments)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _wait(child: int, output: int) -> Outcome:
    """Reads until the child has ended; ends it where it hangs."""
    os.set_blocking(output, False)
    said, until = b"", time.monotonic() + LONGEST_S
    while True:
        select.select([output], [], [], 0.05)
        said += _read(output)
        ended, status, usage = os.wait4(child, os.WNOHANG)
        if ended:
            text = (said + _read(output)).decode(errors="backslashreplace")
            return Outcome(os.waitstatus_to_exitcode(status), text, usage.ru_utime + usage.ru_stime)
        if _cpu_s(child) > LONGEST_CPU_S or time.monotonic() > until:
            _end_group(child)
            os.waitpid(child, 0)
            return Outcome(None, said.decode(errors="backslashreplace"), LONGEST_CPU_S)


def _read(output: int) -> bytes:
    try:
        return os.read(output, 1 << 20)
    except BlockingIOError:
        return b""


def _cpu_s(process: int) -> float:
    """CPU time of a running process."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _end_group(child: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
