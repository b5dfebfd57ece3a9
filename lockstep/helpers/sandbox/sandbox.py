"""Runs untrusted Python programs and their tests under bubblewrap."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from lockstep.core.errors import InputError
from lockstep.helpers.sandbox import memory, solution_side, tester_side
from lockstep.helpers.sandbox.bubblewrap import ALLOW, build_prefix, find_obstacle
from lockstep.helpers.sandbox.seccomp import build_filter

PROCESSES = 8
"""Maximum number of concurrent processes and threads of a program."""

_VERSION = ".".join(map(str, sys.version_info[:2]))
_INTERPRETER = os.path.realpath(f"{sys.base_exec_prefix}/bin/python{_VERSION}")

_FILE_MB = 8  # of each file, including the output
_TMP_MB = 24
_OPEN_FILES = 64
_WATCH_S = 0.02  # within which a program can exceed its limit by some tens of MB
_SHOWN = 400  # maximum number of characters of an error

_INSIDE = "/sandbox"
_OWN = str(Path(__file__).parent)
_SIDES = "lockstep/helpers/sandbox"
_BEGIN = (
    "import sys; sys.path.insert(0, {!r}); from lockstep.helpers.sandbox import {} as side; "
    "side.{}({})"
)
_FIRST_TO_DIE = ("choom", "-n", "1000", "--")
"""Prefix of a command that is killed first if memory runs out."""


class SandboxError(InputError):
    """Programs cannot run in a sandbox; the message is the reason."""


@dataclass(frozen=True)
class ProgramLimits:
    """The limits of a program.

    Attributes:
        cpu_s: CPU time of each process, seconds.
        wall_s: Wall-clock time, seconds.
        memory_mb: Memory (address space) of each process, and total memory of all, MB.
    """

    cpu_s: int
    wall_s: float
    memory_mb: int


@dataclass(frozen=True)
class CodeSandbox:
    """Runs untrusted Python programs; thread-safe.

    Attributes:
        limits: Limits of each program.
        is_isolated: True if programs run under bubblewrap; otherwise they have this user's access.
        interpreter: The Python interpreter for programs, with only its standard library.
    """

    limits: ProgramLimits
    is_isolated: bool = True
    interpreter: str = _INTERPRETER

    def start(self) -> None:
        """Runs a trial program.

        Raises:
            SandboxError: Programs cannot run on this machine.
        """
        try:
            why = find_obstacle() if self.is_isolated else None
            if why is None:
                printed, errors = self._run_program("print(input())", "works")
                if printed == "works\n":
                    why = None
                else:
                    why = f"a trial program failed: {errors or 'it reached a limit'}"
        except SandboxError as error:
            why = f"{error}; {ALLOW}"
        if why is not None:
            raise SandboxError(f"cannot run programs in a sandbox here ({why})")

    def describe_strength(self) -> str:
        """Describes in one sentence what the sandbox blocks and allows."""
        if not self.is_isolated:
            return "without isolation: they can access the network and everything you can access"
        return (
            "under bubblewrap: without your network, permissions and files, in "
            f"{self.limits.memory_mb} MB each"
        )

    def capture_output(self, program: str, given: str) -> str | None:
        """Returns a program's output for the input `given`; None if it fails or reaches a limit.

        Raises:
            SandboxError: The program could not be started.
        """
        return self._run_program(program, given)[0]

    def _run_program(self, program: str, given: str) -> tuple[str | None, str]:
        """Returns a program's `capture_output` and the end of its standard error."""
        with _OpenFiles() as files:
            stdin = files.add_file(given)
            stdout = files.add_file()
            source = files.add_file(program)
            running = self._start_side(files, solution_side, "run_program", (stdin, stdout), source)
            code = running.wait_for_exit(time.monotonic() + self.limits.wall_s)
            return files.read_file(stdout) if code == 0 else None, running.read_errors()

    def passes_test(self, program: str, test: str) -> bool:
        """True if test code, in a separate process from the program, passes; errors as
        `capture_output`.
        """
        with _OpenFiles() as files:
            with _OpenFiles() as pipes:
                ask_read, ask_write = pipes.add_pipe()
                reply_read, reply_write = pipes.add_pipe()
                tester = self._start_side(
                    files, tester_side, "run_test", (reply_read, ask_write), files.add_file(test)
                )
                solution = self._start_side(
                    files, solution_side, "serve", (ask_read, reply_write), files.add_file(program)
                )
            return (
                tester.wait_for_exit(time.monotonic() + self.limits.wall_s, solution)
                == tester_side.PASSED
            )

    def _start_side(
        self, files: _OpenFiles, side: ModuleType, begin: str, streams: tuple[int, int], file: int
    ) -> _RunningProgram:
        """Starts a function of a side's module with the descriptor of a file."""
        errors = files.add_file()
        status = files.add_file()
        passed = [file]
        command = list(_FIRST_TO_DIE)
        if self.is_isolated:
            folder = "/"
            root = _INSIDE
            filtered = files.add_file(build_filter())
            passed += [filtered, status]
            python = str(Path(self.interpreter).parents[1])
            command += build_prefix(
                {python: python, f"{_INSIDE}/{_SIDES}": _OWN}, _TMP_MB, filtered, status
            )
        else:
            folder = root = files.add_folder()
        call = _BEGIN.format(root, side.__name__.rpartition(".")[2], begin, file)
        limits = self.limits
        bounds = {
            "cpu": limits.cpu_s,
            "as": limits.memory_mb << 20,
            "fsize": _FILE_MB << 20,
            "nofile": _OPEN_FILES,
            "core": 0,
            "memlock": 0,
            "msgqueue": 0,
        }
        if self.is_isolated:
            bounds["nproc"] = PROCESSES + 1  # one may belong to bubblewrap
        process = subprocess.Popen(
            [
                *command,
                "prlimit",
                *(f"--{name}={bound}" for name, bound in bounds.items()),
                self.interpreter,
                "-I",
                "-S",
                "-X",
                "utf8",
                "-c",
                call,
            ],
            stdin=streams[0],
            stdout=streams[1],
            stderr=errors,
            pass_fds=passed,
            cwd=folder,
            env={"PATH": os.environ.get("PATH", os.defpath)},
            start_new_session=True,
        )
        running = _RunningProgram(
            process, self.limits.memory_mb, status if self.is_isolated else None, errors
        )
        files.callback(running.kill_group)
        return running


class _OpenFiles(contextlib.ExitStack):
    """Descriptors that are closed at the end of the block."""

    def add_file(self, content: str | bytes = "") -> int:
        """Creates an anonymous file in memory."""
        file = os.memfd_create("program")
        self.callback(os.close, file)
        os.write(file, content.encode(errors="replace") if isinstance(content, str) else content)
        os.lseek(file, 0, os.SEEK_SET)
        return file

    def add_pipe(self) -> tuple[int, int]:
        """Creates a pipe; returns its read and write ends."""
        ends = os.pipe()
        for end in ends:
            self.callback(os.close, end)
        return ends

    def add_folder(self) -> str:
        """Creates a folder from which the sides' modules can be imported."""
        folder = tempfile.mkdtemp(prefix="lockstep-program-")
        self.callback(
            subprocess.run, ["rm", "-rf", "--", folder], check=False, stderr=subprocess.DEVNULL
        )
        (Path(folder) / _SIDES).parent.mkdir(parents=True)
        (Path(folder) / _SIDES).symlink_to(_OWN)
        return folder

    def read_file(self, file: int) -> str:
        """Reads a file from the start."""
        return os.pread(file, os.fstat(file).st_size, 0).decode(errors="replace")


@dataclass(frozen=True)
class _RunningProgram:
    """A running program.

    Attributes:
        process: The process to wait for, in its own group.
        memory_mb: Memory limit of the process and its descendants, MB.
        status: Bubblewrap's report, with an exit code if the program started; None: without
            bubblewrap.
        errors: The standard error of both.
    """

    process: subprocess.Popen[bytes]
    memory_mb: int
    status: int | None
    errors: int

    def wait_for_exit(self, deadline: float, *others: _RunningProgram) -> int | None:
        """Returns the exit code; None if the program or one of `others` reached a limit.

        Args:
            deadline: Wall-clock limit, by `time.monotonic`.
            others: Other programs whose memory is monitored.

        Raises:
            SandboxError: The program could not be started.
        """
        watched = [self, *others]
        with open(os.pidfd_open(self.process.pid), "rb", buffering=0) as ended:
            while not select.select(
                [ended], [], [], min(_WATCH_S, max(0.0, deadline - time.monotonic()))
            )[0]:
                if time.monotonic() >= deadline or any(
                    memory.exceeds_limits(one.process.pid, one.memory_mb) for one in watched
                ):
                    self.kill_group()
                    return None
        code = self.process.wait()
        if (
            code > 0
            and self.status is not None
            and b"exit-code" not in os.pread(self.status, 1 << 12, 0)
        ):
            raise SandboxError(
                f"cannot start a program under bubblewrap: {self.read_errors() or code}"
            )
        return code

    def read_errors(self) -> str:
        """The end of the standard error, in one line."""
        start = max(0, os.fstat(self.errors).st_size - _SHOWN)
        return " ".join(os.pread(self.errors, _SHOWN, start).decode(errors="replace").split())

    def kill_group(self) -> None:
        """Kills remaining processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
