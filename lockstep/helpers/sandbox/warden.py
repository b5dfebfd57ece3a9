"""The process that starts programs in jails, one after the other, and ends all that they leave (see `child`).

It holds nothing heavy, so forking it costs little. A program gets no descriptor, no variable and no memory of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NoReturn

from lockstep.helpers.process import Answers
from lockstep.helpers.sandbox import linux
from lockstep.helpers.sandbox.jail import Jail, Limits, Program

_POLL_S = 0.005

_DRIVER = """
import builtins, sys
builtins.exit = builtins.quit = sys.exit
name = sys.argv.pop()
test = sys.stdin.buffer.read() if name == "solution" else b""
sys.argv[0] = "main.py"
module = sys.modules[name] = type(sys)(name)
with open("main.py", "rb") as file:
    program = compile(file.read(), "main.py", "exec")
exec(program, vars(module))
exec(compile(test, "test.py", "exec"), vars(module))
"""
"""Runs main.py as Python would, or imports it as the module `solution` and runs the test code of its input in it."""


def answers(options: str) -> Answers:
    """Returns the child's answer function: {program, input, tested} to {code, output}, or {wrong} where none can start.

    `code` is the program's exit code, 128 + n if it was ended by the signal n, None if by its limit on the clock.
    `tested` says that the input is test code for the program as a module.

    Args:
        options: JSON of `limits`, `interpreter` and `namespaces`.

    Raises:
        ValueError: If no program can be run here; the text says why.
    """
    if sys.platform != "linux":
        raise ValueError(f"it needs Linux, and this is {sys.platform}")
    given = json.loads(options)
    linux.adopt_orphans()
    warden = _Warden(Limits(**given["limits"]), given["interpreter"], given["namespaces"])
    trial = warden.run("print(input())", "works", tested=False)
    if trial != {"code": 0, "output": "works\n"}:
        raise ValueError(trial.get("wrong", "a trial program failed, so its limits are too low"))

    def ran(question: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield warden.run(question["program"], question["input"], question["tested"])

    return ran


class _Warden:
    """The warden: it runs programs in jails.

    Args:
        limits: Limits of each program.
        interpreter: The Python that runs them.
        namespaces: Whether each is put into its own namespaces.
    """

    def __init__(self, limits: Limits, interpreter: str, namespaces: bool) -> None:
        self._limits, self._interpreter, self._namespaces = limits, interpreter, namespaces

    def run(self, program: str, given: str, tested: bool) -> dict[str, Any]:
        """See `answers`."""
        arguments = ["-I", "-S", "-X", "utf8", "-c", _DRIVER, "solution" if tested else "__main__"]
        files = {"main.py": program.encode(errors="replace")}
        with contextlib.ExitStack() as ends:
            folder = None if self._namespaces else ends.enter_context(_private_folder())
            stdin, stdout = ends.enter_context(_memory(given)), ends.enter_context(_memory(""))
            stderr = ends.enter_context(open(os.devnull, "wb"))
            streams = (stdin.fileno(), stdout.fileno(), stderr.fileno())
            jail = Jail(self._limits, self._interpreter, folder)
            found = self._run_to_end(jail, Program(arguments, files, streams))
            return found | ({"output": _text(stdout.fileno())} if found.get("code") == 0 else {})

    def _run_to_end(self, jail: Jail, program: Program) -> dict[str, Any]:
        """Runs a program to its end, and ends what it leaves."""
        errors, report = os.pipe()
        with open(errors, "rb") as wrong:
            first = os.fork()
            if first == 0:
                _enter(jail, program, report)
            os.close(report)
            try:
                why = wrong.read().decode()
                code = None if why else self._wait(first)
            finally:
                _end_children()
        return {"wrong": why} if why else {"code": code}

    def _wait(self, first: int) -> int | None:
        """The exit code of a process, or None where it takes too long."""
        with open(os.pidfd_open(first), "rb", buffering=0) as ended:
            if not select.select([ended], [], [], self._limits.wall_s)[0]:
                return None
        code = os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])
        return code if code >= 0 else 128 - code


def _enter(jail: Jail, program: Program, report: int) -> NoReturn:
    """Enters the jail, in a fork; an error, also one in the program's own fork, goes to the report."""
    try:
        jail.enter(program, report)
    except BaseException as error:
        os.write(report, str(getattr(error, "strerror", None) or error).encode())
    finally:
        os._exit(1)


def _end_children() -> None:
    """Kills a program's processes until none is left; orphans have become children of this process."""
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        for child in _children():
            os.kill(child, signal.SIGKILL)
        time.sleep(_POLL_S)


def _children() -> Iterator[int]:
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError, IndexError, ValueError):  # it may have ended, or is no process
            stat = (process / "stat").read_text()
            if int(stat.rpartition(")")[2].split()[1]) == os.getpid():
                yield int(process.name)


def _private_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="lockstep-program-")


def _memory(content: str) -> IO[bytes]:
    """A file that lies in memory and has no name."""
    file = os.fdopen(os.memfd_create("program"), "w+b")
    file.write(content.encode(errors="replace"))
    file.seek(0)
    return file


def _text(file: int) -> str:
    return os.pread(file, os.fstat(file).st_size, 0).decode(errors="replace")
