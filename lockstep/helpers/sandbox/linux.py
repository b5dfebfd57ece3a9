"""Linux system calls that Python's standard library lacks, with errors as `OSError`."""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path
from typing import Any

NEW_MOUNTS = 0x00020000
NEW_IPC = 0x08000000
NEW_USERS = 0x10000000
NEW_PROCESSES = 0x20000000
NEW_NETWORK = 0x40000000

NOSUID, NODEV, BIND, MOVE, RECURSIVE, PRIVATE = 0x2, 0x4, 0x1000, 0x2000, 0x4000, 0x40000

MESSAGE_QUEUES = 12  # a limit that the module `resource` does not name

_SET_DEATH_SIGNAL, _SET_SUBREAPER, _SET_NO_NEW_PRIVILEGES = 1, 36, 38
_MOUNT_SETATTR = 442  # the same number on every architecture
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_READ_ONLY, _ATTRIBUTE_NOSUID = 0x1, 0x2

_LIBC = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> None:
    """Moves this process into new namespaces; that of processes holds only its children to come."""
    _require_success("unshare", _LIBC.unshare(flags))


def find_obstacle() -> str | None:
    """Finds what keeps this process from namespaces, or from rights in them, where the system says so."""
    if os.geteuid() != 0 and _read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1":
        return "AppArmor takes the rights of users' namespaces (kernel.apparmor_restrict_unprivileged_userns=1)"
    if os.geteuid() != 0 and _read("/proc/sys/user/max_user_namespaces") == "0":
        return "users may have no namespaces (user.max_user_namespaces=0)"
    if "\nSeccomp:\t2\n" in _read("/proc/self/status"):
        return "this process is under a filter of system calls, as in a plain container"
    return None


def _read(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def mount(source: str, target: str, kind: str | None = None, flags: int = 0, options: str | None = None) -> None:
    """Mounts, binds, moves or changes a mount, as the flags say."""
    text = [None if word is None else os.fsencode(word) for word in (source, target, kind, options)]
    _require_success(f"mount {target}", _LIBC.mount(text[0], text[1], text[2], ctypes.c_ulong(flags), text[3]))


def make_read_only(target: str) -> None:
    """Makes a mount read-only, and all that is mounted below it; Linux 5.12."""
    attributes = (ctypes.c_uint64 * 4)(_READ_ONLY | _ATTRIBUTE_NOSUID, 0, 0, 0)
    path = ctypes.create_string_buffer(os.fsencode(target))
    call_system(_MOUNT_SETATTR, _AT_FDCWD, path, _AT_RECURSIVE, attributes, ctypes.sizeof(attributes))


def call_system(number: int, *arguments: int | ctypes.Array[Any] | None) -> int:
    """Makes a system call that has no function in the C library; returns what it returns."""
    words = [
        argument if argument is None or not isinstance(argument, int) else ctypes.c_long(argument)
        for argument in arguments
    ]
    result = _LIBC.syscall(ctypes.c_long(number), *words)
    _require_success(f"system call {number}", result)
    return result


def die_with_parent() -> None:
    """Lets the kernel kill this process when its parent ends; a change of user takes that back."""
    control_process(_SET_DEATH_SIGNAL, signal.SIGKILL)


def adopt_orphans() -> None:
    """Makes this process the parent of descendants that lose theirs."""
    control_process(_SET_SUBREAPER, 1)


def forbid_privileges() -> None:
    """Keeps programs that this process starts from gaining rights."""
    control_process(_SET_NO_NEW_PRIVILEGES, 1)


def control_process(option: int, *values: int) -> None:
    """Sets an attribute of this process (prctl)."""
    words = [ctypes.c_ulong(value) for value in (*values, 0, 0, 0, 0)[:4]]
    _require_success("prctl", _LIBC.prctl(option, *words))


def _require_success(what: str, result: int) -> None:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
