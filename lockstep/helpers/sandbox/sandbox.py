"""Untrusted Python programs, run under bubblewrap: the output of one, and whether test code passes with it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Literal, assert_never

from lockstep.core.errors import InputError
from lockstep.helpers.sandbox import memory, solution_side, tester_side
from lockstep.helpers.sandbox.bubblewrap import SYSTEM_FILES, find_obstacle, is_root, map_to_itself, open_filter, wrap
from lockstep.helpers.sandbox.uses import find_uses

Isolation = Literal["bubblewrap", "none"]
"""Means that keep a program from the rest of the machine."""

_VERSION = ".".join(map(str, sys.version_info[:2]))
_INTERPRETER = os.path.realpath(f"{sys.base_exec_prefix}/bin/python{_VERSION}")

_MB = 1 << 20
_TMP_MB = 16  # in /tmp, besides one of the largest files
_OPEN_FILES = 64
_MOST_THREADS = 1 << 22  # of a machine: thread ids are lower
_FIRST_USER = (1 << 31) - 2 * _MOST_THREADS  # user ids are not that high
_WATCH_S = 0.02  # in which a program can take some tens of MB more than it may
_SHOWN = 400  # characters of an error

_INSIDE = "/sandbox"
_OWN = str(Path(__file__).parent)
_SIDES = "lockstep/helpers/sandbox"
_BEGIN = "import sys; sys.path.insert(0, {!r}); from lockstep.helpers.sandbox import {} as side; side.{}({})"
_FIRST_TO_DIE = ("sh", "-c", 'echo 1000 > /proc/self/oom_score_adj; [ -z "$0" ] || echo $$ > "$0"; exec "$@"')
"""Begins a command in a cgroup, if one is named; if memory runs out, it goes first."""


class SandboxError(InputError):
    """Programs cannot be run in a sandbox; the message says why."""


@dataclass(frozen=True)
class Limits:
    """The limits of a program.

    Attributes:
        cpu_s: Seconds of CPU time of each process.
        wall_s: Seconds on the clock.
        memory_mb: Memory (address space) of each process, and memory of all together, MB.
        file_mb: Size of each file that it writes, its output among them, MB.
        processes: Number at a time, threads counted.
    """

    cpu_s: int
    wall_s: float
    memory_mb: int
    file_mb: int
    processes: int


@dataclass(frozen=True)
class ProgramResult:
    """The outcome of a test.

    Attributes:
        passed: True if the test ran to its end.
        why: The reason for which it did not; None where it did.
        tampering: Signs that the program attempted to cheat the test.
    """

    passed: bool
    why: str | None
    tampering: tuple[str, ...]


_AT_ITS_LIMIT = ProgramResult(False, "the test reached a limit", ())


@dataclass(frozen=True)
class Sandbox:
    """Runs untrusted Python programs; usable from several threads at a time.

    Attributes:
        limits: Limits of each program.
        isolation: What keeps them from the rest of the machine.
        interpreter: The Python that runs them, with its standard library and no other packages.
    """

    limits: Limits
    isolation: Isolation = "bubblewrap"
    interpreter: str = _INTERPRETER

    @property
    def is_isolated(self) -> bool:
        """True if programs run under bubblewrap."""
        match self.isolation:
            case "bubblewrap":
                return True
            case "none":
                return False
            case _:
                assert_never(self.isolation)

    def start(self) -> None:
        """Runs a trial program.

        Raises:
            SandboxError: Programs cannot be run here.
        """
        try:
            why = find_obstacle() if self.is_isolated else None
            if why is None:
                printed, errors = self._run("print(input())", "works")
                why = None if printed == "works\n" else f"a trial program failed: {errors or 'it reached a limit'}"
        except SandboxError as error:
            why = str(error)
        if why is not None:
            raise SandboxError(f"programs cannot be run in a sandbox here ({why})")

    def strength(self) -> str:
        """Describes in a sentence what the sandbox stops, and what not."""
        if not self.is_isolated:
            return "without isolation: they reach the network, and what you can reach"
        with memory.open_cgroup(self._memory_mb) as cgroup:
            counted = "polled" if cgroup is None else "by a cgroup"
        return (
            "under bubblewrap: without network, rights and files of yours; "
            f"a program holds at most {self.limits.memory_mb} MB ({counted})"
        )

    def output(self, program: str, given: str) -> str | None:
        """Returns what a program prints that reads `given`; None where it fails or reaches a limit.

        Raises:
            SandboxError: It could not be run.
        """
        return self._run(program, given)[0]

    def _run(self, program: str, given: str) -> tuple[str | None, str]:
        """Returns what a program prints, as `output`, and the end of what it prints as errors."""
        with _OpenFiles() as files:
            stdin, stdout, source = files.add(given), files.add(), files.add(program)
            running = self._start(files, solution_side, "run_program", (stdin, stdout), source)
            code = running.wait(time.monotonic() + self.limits.wall_s)
            return files.read(stdout) if code == 0 else None, running.read_errors()

    def test(self, program: str, test: str) -> ProgramResult:
        """Runs test code in one process, which calls the program in another; errors as `output`."""
        with _OpenFiles() as files:
            verdict, source = files.add(json.dumps({"test": test, "uses": find_uses(test)})), files.add(program)
            with _OpenFiles() as pipes:
                (asked, asks), (told, tells) = pipes.add_pipe(), pipes.add_pipe()
                tester = self._start(files, tester_side, "run_test", (told, asks), verdict)
                solution = self._start(files, solution_side, "serve", (asked, tells), source)
            deadline = time.monotonic() + self.limits.wall_s
            if tester.wait(deadline, solution) != 0:
                return _AT_ITS_LIMIT
            try:
                found = json.loads(files.read(verdict))
                result = ProgramResult(found["passed"], found["why"], tuple(found["tampering"]))
            except (ValueError, KeyError, TypeError):  # the test ended its process
                return _AT_ITS_LIMIT
            if result.why == tester_side.ENDED and solution.wait(deadline) == 0:
                sign = "ended its process before its test"
                return ProgramResult(False, result.why, (*result.tampering, sign))
            return result

    @property
    def _memory_mb(self) -> int:
        """Limit of a cgroup, which also counts the files of /tmp."""
        return self.limits.memory_mb + self._tmp_mb

    @property
    def _tmp_mb(self) -> int:
        return self.limits.file_mb + _TMP_MB

    def _start(
        self, files: _OpenFiles, side: ModuleType, begin: str, streams: tuple[int, int], file: int
    ) -> _RunningProgram:
        """Starts a function of one of the sides' modules, which gets the number of a file."""
        cgroup = files.enter_context(memory.open_cgroup(self._memory_mb))
        errors, status = files.add(), files.add()
        passed = [file]
        if self.is_isolated:
            folder, root = "/", _INSIDE
            filtered = files.add_open(open_filter())
            passed += [filtered, status]
            command = [*self._wrap(filtered, status, side), *self._limit(self._count_processes())]
        else:
            folder = root = files.add_folder()
            command = self._limit(processes=None)
        call = _BEGIN.format(root, side.__name__.rpartition(".")[2], begin, file)
        command += [self.interpreter, "-I", "-S", "-X", "utf8", "-c", call]
        process = subprocess.Popen(
            [*_FIRST_TO_DIE, "" if cgroup is None else str(cgroup / "cgroup.procs"), *command],
            stdin=streams[0],
            stdout=streams[1],
            stderr=errors,
            pass_fds=passed,
            cwd=folder,
            env={"PATH": os.environ.get("PATH", os.defpath)},
            start_new_session=True,
        )
        exceeds = memory.watch(process.pid, self.limits.memory_mb, cgroup, self.is_isolated)
        running = _RunningProgram(process, exceeds, status if self.is_isolated else None, errors)
        files.callback(running.end)
        return running

    def _wrap(self, filtered: int, status: int, side: ModuleType) -> list[str]:
        readable = map_to_itself((*SYSTEM_FILES, str(Path(self.interpreter).parents[1])))
        readable[f"{_INSIDE}/{_SIDES}"] = _OWN
        options = ["--die-with-parent", "--json-status-fd", str(status)]
        if not is_root():
            return wrap(readable, "/tmp", self._tmp_mb, filtered, {}, *options)
        # The limit on processes does not hold for root, so each thread runs its programs as separate users.
        user = str(_FIRST_USER + threading.get_native_id() + (_MOST_THREADS if side is tester_side else 0))
        options += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
        become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
        return [*wrap(readable, "/tmp", self._tmp_mb, filtered, {}, *options), *become]

    def _count_processes(self) -> int:
        """The limit on processes, which bwrap's own counts for where it has a namespace of users."""
        return self.limits.processes + (not is_root())

    def _limit(self, processes: int | None) -> list[str]:
        limits = self.limits
        bounds = {
            "cpu": limits.cpu_s,
            "as": limits.memory_mb * _MB,
            "fsize": limits.file_mb * _MB,
            "nofile": _OPEN_FILES,
            "core": 0,
            "memlock": 0,
            "msgqueue": 0,
        }
        if processes is not None:
            bounds["nproc"] = processes
        return ["prlimit", *(f"--{name}={bound}" for name, bound in bounds.items())]


class _OpenFiles(contextlib.ExitStack):
    """Descriptors that are closed at the end of the block."""

    def add_open(self, descriptor: int) -> int:
        """Takes a descriptor over."""
        self.callback(os.close, descriptor)
        return descriptor

    def add(self, content: str = "") -> int:
        """Makes a file that lies in memory and has no name."""
        file = self.add_open(os.memfd_create("program"))
        os.write(file, content.encode(errors="replace"))
        os.lseek(file, 0, os.SEEK_SET)
        return file

    def add_pipe(self) -> tuple[int, int]:
        """Makes a pipe; returns its ends to read and to write."""
        reads, writes = os.pipe()
        return self.add_open(reads), self.add_open(writes)

    def add_folder(self) -> str:
        """Makes a folder in which the sides' modules can be imported."""
        folder = tempfile.mkdtemp(prefix="lockstep-program-")
        self.callback(subprocess.run, ["rm", "-rf", "--", folder], check=False, stderr=subprocess.DEVNULL)
        (Path(folder) / _SIDES).parent.mkdir(parents=True)
        (Path(folder) / _SIDES).symlink_to(_OWN)
        return folder

    def read(self, file: int) -> str:
        """Reads a file from its beginning."""
        return os.pread(file, os.fstat(file).st_size, 0).decode(errors="replace")


@dataclass(frozen=True)
class _RunningProgram:
    """A program that runs.

    Attributes:
        process: The process to wait for, of a group of its own.
        exceeds: True if it holds too much memory.
        status: Bubblewrap's report, which names an exit code if the program was begun; None: without bubblewrap.
        errors: The standard error of both.
    """

    process: subprocess.Popen[bytes]
    exceeds: Callable[[], bool]
    status: int | None
    errors: int

    def wait(self, deadline: float, *others: _RunningProgram) -> int | None:
        """Returns the exit code, or None if the program or one of the others reached a limit.

        Args:
            deadline: The limit on the clock, of `time.monotonic`.
            others: Programs whose memory is watched, too.

        Raises:
            SandboxError: The program could not be begun.
        """
        with open(os.pidfd_open(self.process.pid), "rb", buffering=0) as ended:
            while not select.select([ended], [], [], min(_WATCH_S, max(0.0, deadline - time.monotonic())))[0]:
                if time.monotonic() >= deadline or any(one.exceeds() for one in (self, *others)):
                    self.end()
                    return None
        code = self.process.wait()
        if code > 0 and self.status is not None and b"exit-code" not in os.pread(self.status, 1 << 12, 0):
            raise SandboxError(f"a program could not be begun under bubblewrap: {self.read_errors() or code}")
        return code

    def read_errors(self) -> str:
        """The end of what it has printed as errors, in one line."""
        start = max(0, os.fstat(self.errors).st_size - _SHOWN)
        return " ".join(os.pread(self.errors, _SHOWN, start).decode(errors="replace").split())

    def end(self) -> None:
        """Kills what still runs."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
