"""The process that starts programs in jails, one after the other, and ends all that they leave (see `child`).

It holds nothing heavy, so forking it costs little. A program gets no descriptor, no variable and no memory of it.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import marshal
import os
import select
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import IO, Any, NoReturn, assert_never

from lockstep.helpers.descendants import end_children, find_children, find_descendants, kill_all
from lockstep.helpers.private_folder import make_private_folder, remove_private_folder
from lockstep.helpers.process import Answers
from lockstep.helpers.sandbox import filters, linux, plain_values, solution_side, tester_side
from lockstep.helpers.sandbox.jail import Isolation, Jail, Limits, Program
from lockstep.helpers.sandbox.results import ProgramOutput, ProgramResult
from lockstep.helpers.sandbox.uses import find_uses

_WATCH_S = 0.02  # in which a program can take some tens of MB more than it may

_ISOLATED = ("-I", "-S", "-X", "utf8", "-c")

_RUN = """
import builtins, sys
builtins.exit = builtins.quit = sys.exit
sys.argv[0] = "main.py"
name = "__main__"
module = sys.modules[name] = type(sys)(name)
with open("main.py", "rb") as file:
    program = compile(file.read(), "main.py", "exec")
exec(program, vars(module))
"""
"""Runs main.py as Python would."""


def _driver(side: ModuleType, begin: str) -> str:
    """Returns a program that calls a function of one of the sides' modules where this package cannot be imported."""
    compiled = [
        (module.__name__, marshal.dumps(compile(inspect.getsource(module), module.__name__, "exec")).hex())
        for module in (plain_values, side)
    ]  # by the same version of Python
    return f"""
import marshal, sys
for name, code in {compiled!r}:
    module = sys.modules[name] = type(sys)(name)
    exec(marshal.loads(bytes.fromhex(code)), vars(module))
del sys.argv[1:]
module.{begin}()
"""


_SOLUTION = _driver(solution_side, "serve")
_TESTER = _driver(tester_side, "run_test")


def answers(options: str) -> Answers:
    """Returns the child's answer function: {program, input, tested} to a reply, or {wrong} where none can start.

    None is answered with the strength of the sandbox, a text. The reply has the fields of a `ProgramOutput`; where
    `tested` says that the input is test code for the program as a module, those of a `ProgramResult`.

    Args:
        options: JSON of `limits`, `interpreter` and `isolation`.

    Raises:
        ValueError: If no program can be run here; the text says why.
    """
    if sys.platform != "linux":
        raise ValueError(f"it needs Linux, and this is {sys.platform}")
    given = json.loads(options)
    linux.adopt_orphans()
    warden = _Warden(Limits(**given["limits"]), given["interpreter"], given["isolation"], _can_filter())
    try:
        trial = warden.run("print(input())", "works")
    except _Unable as why:
        raise ValueError("; ".join(filter(None, (str(why), warden.obstacle())))) from None
    if trial != ProgramOutput(0, "works\n"):
        raise ValueError("a trial program failed, so its limits are too low")

    def ran(question: dict[str, Any]) -> Iterator[dict[str, Any]]:
        run = warden.test if question["tested"] else warden.run
        try:
            yield asdict(run(question["program"], question["input"]))
        except _Unable as why:
            yield {"wrong": str(why)}

    def answer(question: dict[str, Any] | None) -> Iterator[Any]:
        return iter([warden.strength()]) if question is None else ran(question)

    return answer


_AT_ITS_LIMIT = ProgramResult(False, "the test reached a limit", ())


class _Unable(Exception):
    """A jail cannot be set up; the text says why."""


class _Warden:
    """The warden: it runs programs in jails.

    Args:
        limits: Limits of each program.
        interpreter: The Python that runs them.
        isolation: What keeps them from the rest of the machine.
        filtered: True if system calls can be refused here.
    """

    def __init__(self, limits: Limits, interpreter: str, isolation: Isolation, filtered: bool) -> None:
        self._limits, self._interpreter, self._filtered = limits, interpreter, filtered
        self._isolation: Isolation = isolation

    def strength(self) -> str:
        """Describes in a sentence what the sandbox stops, and what not."""
        calls = (
            "system calls are filtered"
            if self._filtered
            else "system calls cannot be filtered here, so a program may hold more memory than its limit"
        )
        together = f"a program holds at most {self._limits.memory_mb} MB"
        match self._isolation:
            case "namespaces":
                return f"strong: in namespaces, without network and files of yours; {calls}; {together}"
            case "filters":
                return f"medium: without network and files of yours, by filters and not namespaces; {together}"
            case "limits":
                return f"weak: programs reach the files and processes that their user does; {calls}; {together}"
            case _:
                assert_never(self._isolation)

    def obstacle(self) -> str | None:
        """Finds what of this system keeps programs from the isolation that is asked for, where that is known."""
        match self._isolation:
            case "namespaces":
                return linux.find_obstacle()
            case "filters" | "limits":
                return None
            case _:
                assert_never(self._isolation)

    def run(self, program: str, given: str) -> ProgramOutput:
        """Runs a program that reads `given`.

        Raises:
            _Unable: It cannot be started.
        """
        with contextlib.ExitStack() as ends:
            stdin, stdout = ends.enter_context(_memory(given)), ends.enter_context(_memory(""))
            stderr = ends.enter_context(open(os.devnull, "wb"))
            streams = (stdin.fileno(), stdout.fileno(), stderr.fileno())
            try:
                started = self._start(ends, _RUN, program, streams)
                code = self._wait(started, time.monotonic() + self._limits.wall_s)
            finally:
                end_children()
            return ProgramOutput(code, _text(stdout.fileno()) if code == 0 else None)

    def test(self, program: str, test: str) -> ProgramResult:
        """Runs test code in a process of its own, which asks the program in another; errors as `run`."""
        with contextlib.ExitStack() as ends:
            verdict = ends.enter_context(_memory(json.dumps({"test": test, "uses": find_uses(test)})))
            nothing = ends.enter_context(open(os.devnull, "wb"))
            pipes = ends.enter_context(contextlib.ExitStack())
            (asked, asks), (told, tells) = _open_pipe(pipes), _open_pipe(pipes)
            try:
                tester = self._start(ends, _TESTER, "", (told, asks, verdict.fileno()))
                solution = self._start(ends, _SOLUTION, program, (asked, tells, nothing.fileno()))
                pipes.close()  # each side must see the other end
                deadline = time.monotonic() + self._limits.wall_s
                found = _read_verdict(self._wait(tester, deadline), verdict.fileno())
                if found.why == tester_side.ENDED and self._wait(solution, deadline) == 0:
                    return replace(found, tampering=(*found.tampering, "ended its process before its test"))
                return found
            finally:
                end_children()

    def _start(self, ends: contextlib.ExitStack, driver: str, program: str, streams: Sequence[int]) -> int:
        """Starts a program in a jail; returns the process to wait for."""
        jail = self._build_jail(ends)
        inside = Program((*_ISOLATED, driver), {"main.py": program.encode(errors="replace")}, streams)
        errors, report = os.pipe()
        with open(errors, "rb") as wrong:
            first = os.fork()
            if first == 0:
                _enter(jail, inside, report)
            os.close(report)
            why = wrong.read().decode()
        if why:
            raise _Unable(why)
        return first

    def _build_jail(self, ends: contextlib.ExitStack) -> Jail:
        make = partial(Jail, self._limits, self._interpreter)
        match self._isolation:
            case "namespaces":
                return make(None, confined=False, filtered=self._filtered)
            case "filters":
                return make(ends.enter_context(_private_folder()), confined=True, filtered=True)
            case "limits":
                return make(ends.enter_context(_private_folder()), confined=False, filtered=self._filtered)
            case _:
                assert_never(self._isolation)

    def _wait(self, first: int, deadline: float) -> int | None:
        """The exit code of a process, or None where it still runs at the deadline, which is on `time.monotonic`."""
        with open(os.pidfd_open(first), "rb", buffering=0) as ended:
            while not select.select([ended], [], [], min(_WATCH_S, max(0.0, deadline - time.monotonic())))[0]:
                if time.monotonic() >= deadline:
                    return None
                self._end_greedy()
        code = os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])
        return code if code >= 0 else 128 - code

    def _end_greedy(self) -> None:
        """Kills jails whose processes together hold more memory than a program may."""
        for jail in find_children(os.getpid()):
            inside = list(find_descendants(jail))
            if sum(_count_memory_kb(process) for process in inside) > self._limits.memory_mb << 10:
                kill_all(inside)


def _enter(jail: Jail, program: Program, report: int) -> NoReturn:
    """Enters the jail, in a fork; an error, also one in the program's own fork, goes to the report."""
    try:
        jail.enter(program, report)
    except BaseException as error:
        os.write(report, str(getattr(error, "strerror", None) or error).encode())
    finally:
        os._exit(1)


def _count_memory_kb(process: int) -> int:
    """Memory that a process holds, without that of files."""
    with contextlib.suppress(OSError):  # it may have ended
        fields = dict(
            line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
        )
        return sum(int(fields[name].split()[0]) for name in ("RssAnon", "RssShmem") if name in fields)
    return 0


def _can_filter() -> bool:
    """True if system calls can be refused to a program here, which a fork tries."""
    child = os.fork()
    if child == 0:
        with contextlib.suppress(OSError):
            linux.forbid_privileges()
            filters.refuse_system_calls(signals=True)
            os._exit(0)
        os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def _open_pipe(ends: contextlib.ExitStack) -> tuple[int, int]:
    reads, writes = os.pipe()
    ends.callback(os.close, writes)
    ends.callback(os.close, reads)
    return reads, writes


@contextlib.contextmanager
def _private_folder() -> Iterator[str]:
    """A program's own folder."""
    folder = make_private_folder("lockstep-program-")
    try:
        yield folder.name
    finally:
        remove_private_folder(folder)


def _read_verdict(code: int | None, file: int) -> ProgramResult:
    """The verdict that a tester has written; a test that ended its process in another way has not passed."""
    try:
        found = ProgramResult(**json.loads(_text(file))) if code == 0 else _AT_ITS_LIMIT
    except (ValueError, TypeError):
        return _AT_ITS_LIMIT
    return found


def _memory(content: str) -> IO[bytes]:
    """A file that lies in memory and has no name."""
    file = os.fdopen(os.memfd_create("program"), "w+b")
    file.write(content.encode(errors="replace"))
    file.seek(0)
    return file


def _text(file: int) -> str:
    return os.pread(file, os.fstat(file).st_size, 0).decode(errors="replace")
