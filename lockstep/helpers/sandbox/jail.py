"""The jail between a fork and an untrusted program: namespaces or filters, a user without rights, limits.

With namespaces the program sees no network and no other process, and of all files only the system's and Python's,
read-only, and an empty folder in memory that goes away with it. Filters refuse it the same, but it shares this
machine's names and its disk. Without both there are the limits, and the filter of system calls where it can be had.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn

from lockstep.helpers.sandbox import filters, linux

Isolation = Literal["namespaces", "filters", "limits"]
"""Means that keep a program from the rest of the machine, the strongest first."""

SYSTEM_FILES = ("/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache", "/dev/null", "/dev/zero", "/dev/urandom")
_FOLDER = "/tmp"
_FILES = 1024  # that may lie there
_ROOM_MB = 16  # for them, besides one of the largest
_ROOT = "/proc"  # where the file system is made: every Linux has the folder, and the program should not see into it
_OPEN_FILES = 64
_NOBODY = 65534
_FIRST_USER = (1 << 31) - (1 << 22)  # process ids are below 2²², and user ids are not that high
_MB = 1 << 20


@dataclass(frozen=True)
class Limits:
    """The limits of a program.

    Attributes:
        cpu_s: Seconds of CPU time of each process.
        wall_s: Seconds on the clock.
        memory_mb: Memory (address space) of each process, and resident memory of all together, MB.
        file_mb: Size of each file that it writes, its output among them, MB.
        processes: Number at a time, threads counted.
    """

    cpu_s: int
    wall_s: float
    memory_mb: int
    file_mb: int
    processes: int


@dataclass(frozen=True)
class Program:
    """A program to run.

    Attributes:
        arguments: Arguments of the interpreter.
        files: Their names and content, written into its folder first.
        streams: Descriptors that become its input, output and errors; it gets no others.
    """

    arguments: Sequence[str]
    files: Mapping[str, bytes]
    streams: Sequence[int]


@dataclass(frozen=True)
class Jail:
    """The jail of a program.

    Attributes:
        limits: Limits of the program.
        interpreter: The Python that runs it.
        folder: Working folder; None: in namespaces, in a folder that only they know.
        confined: True to keep it to that folder and the files to be read by a filter.
        filtered: True to refuse it system calls.
    """

    limits: Limits
    interpreter: str
    folder: str | None
    confined: bool
    filtered: bool

    def enter(self, program: Program, report: int) -> NoReturn:
        """Starts the program, and ends this process when and as it ends.

        To be called in a fork that has one thread. Where its parent is killed, it and the program are, too.

        Args:
            program: The program to run.
            report: A descriptor that is closed once the program has started.

        Raises:
            OSError: Something cannot be set up; the text says what. It may come from a fork of this process.
        """
        parent = os.getppid()
        os.setsid()
        with contextlib.suppress(OSError):  # a container may forbid it
            # If memory runs out, this process goes first.
            Path("/proc/self/oom_score_adj").write_text("1000", encoding="utf-8")
        user = _FIRST_USER + os.getpid() if _is_root() else None
        others = self._others(user)
        if self.folder is None:
            _unshare(users=user is None)
        linux.die_with_parent()
        if os.getppid() != parent:
            os._exit(1)
        watch, hold = os.pipe()
        for_the_program = (report, watch, *program.streams)
        _keep(hold, *for_the_program)
        if os.fork() == 0:
            os.close(hold)
            self._become(program, user, others, watch)
        for descriptor in for_the_program:  # the reader must see the program end
            os.close(descriptor)
        code = os.waitstatus_to_exitcode(os.wait()[1])
        os._exit(code if code >= 0 else 128 - code)

    def _others(self, user: int | None) -> int:
        """Returns how many processes of others count toward the program's limit on processes."""
        if user is not None:  # an id that no other process has
            return 0
        return 1 if self.folder is None else _tasks_of(os.getuid())

    def _become(self, program: Program, user: int | None, others: int, watch: int) -> NoReturn:
        """Becomes the program; `watch` is closed where the parent has ended."""
        os.setsid()
        if self.folder is None:
            self._change_root()
        os.chdir(self.folder or _FOLDER)
        for name, content in program.files.items():
            Path(name).write_bytes(content)
        if user is not None:
            os.chown(".", user, user)
        linux.forbid_privileges()
        if self.confined:
            filters.confine_files(self._readable(), ".")
        if user is not None:
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
        self._limit(others)
        linux.die_with_parent()
        if select.select([watch], [], [], 0)[0]:
            os._exit(1)
        for number, descriptor in enumerate(program.streams):
            os.dup2(descriptor, number)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        if self.filtered:
            filters.refuse_system_calls(signals=self.confined and not filters.keeps_signals())
        os.execve(self.interpreter, [self.interpreter, *program.arguments], {})

    def _readable(self) -> tuple[str, ...]:
        """Files and folders that the program may read."""
        return (*SYSTEM_FILES, str(Path(self.interpreter).parents[1]))

    def _change_root(self) -> None:
        """Makes a file system of what the program may see."""
        linux.mount("none", "/", flags=linux.PRIVATE | linux.RECURSIVE)
        room = f"mode=0755,size={self.limits.file_mb + _ROOM_MB}m,nr_inodes={_FILES}"
        linux.mount("tmpfs", _ROOT, "tmpfs", linux.NOSUID | linux.NODEV, room)
        for path in self._readable():
            _show(path)
        os.makedirs(_ROOT + _FOLDER, exist_ok=True)  # Python may lie there
        os.chdir(_ROOT)
        linux.mount(".", "/", flags=linux.MOVE)
        os.chroot(".")

    def _limit(self, others: int) -> None:
        limits = self.limits
        bounds = {
            resource.RLIMIT_CPU: limits.cpu_s,
            resource.RLIMIT_AS: limits.memory_mb * _MB,
            resource.RLIMIT_FSIZE: limits.file_mb * _MB,
            resource.RLIMIT_NPROC: limits.processes + others,
            resource.RLIMIT_NOFILE: _OPEN_FILES,
            resource.RLIMIT_CORE: 0,
            resource.RLIMIT_MEMLOCK: 0,
            linux.MESSAGE_QUEUES: 0,
        }
        for kind, bound in bounds.items():
            hard = resource.getrlimit(kind)[1]
            bound = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
            resource.setrlimit(kind, (bound, bound))


def _unshare(users: bool) -> None:
    """Enters new namespaces; without root's rights that needs a user namespace, with one user."""
    user, group = os.geteuid(), os.getegid()
    kinds = linux.NEW_MOUNTS | linux.NEW_PROCESSES | linux.NEW_NETWORK | linux.NEW_IPC
    linux.unshare(kinds | (linux.NEW_USERS if users else 0))
    if users:
        Path("/proc/self/setgroups").write_text("deny", encoding="utf-8")
        Path("/proc/self/uid_map").write_text(f"{_NOBODY} {user} 1", encoding="utf-8")
        Path("/proc/self/gid_map").write_text(f"{_NOBODY} {group} 1", encoding="utf-8")
    for name in ("shmall", "shmmax", "msgmni"):  # of these namespaces, for where system calls cannot be refused
        with contextlib.suppress(OSError):
            Path(f"/proc/sys/kernel/{name}").write_text("0", encoding="utf-8")


def _show(path: str) -> None:
    """Puts a file or folder at the same place below the new root, as it is, to be read."""
    inside = Path(_ROOT + path)
    if inside.exists() or not Path(path).exists():
        return
    inside.parent.mkdir(parents=True, exist_ok=True)
    if Path(path).is_symlink():
        inside.symlink_to(os.readlink(path))
        return
    if Path(path).is_dir():
        inside.mkdir()
    else:
        inside.touch()
    linux.mount(path, str(inside), flags=linux.BIND | linux.RECURSIVE)
    linux.make_read_only(str(inside))


def _is_root() -> bool:
    """True if this is the system's own root and not that of a container with its own user namespace."""
    return os.geteuid() == 0 and Path("/proc/self/uid_map").read_text(encoding="utf-8").split() == [
        "0",
        "0",
        str((1 << 32) - 1),
    ]


def _tasks_of(user: int) -> int:
    """Counts the threads that a user has at the moment."""
    count = 0
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # it may have ended meanwhile
            if process.name.isdigit() and process.stat().st_uid == user:
                count += len(os.listdir(process / "task"))
    return count


def _keep(*descriptors: int) -> None:
    """Closes all descriptors but these and the three standard ones."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in descriptors:
            with contextlib.suppress(OSError):  # the one that listed them
                os.close(int(name))
