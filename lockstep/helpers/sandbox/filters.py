"""Filters of Linux that any process may put on itself: of system calls (seccomp), and of files and signals (Landlock).

They need neither rights nor namespaces, so they hold in plain containers and where namespaces are forbidden, and they
cannot be taken off again. A refused call fails as if it were not permitted.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path

from lockstep.helpers.sandbox.linux import call_system, control_process

_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_NUMBERS: Mapping[str, tuple[int, int]] = {
    # Memory that no limit of a process counts: System V, files without a name, files in flight, large buffers.
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "semget": (64, 190),
    "semop": (65, 193),
    "semctl": (66, 191),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgctl": (71, 187),
    "mq_open": (240, 180),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "sendmsg": (46, 211),
    "sendmmsg": (307, 269),
    "setsockopt": (54, 208),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "vmsplice": (278, 75),
    # The network, and sockets of this machine; a pair of sockets within the program is left.
    "socket": (41, 198),
    "connect": (42, 203),
    # Other processes.
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    # Parts of the kernel that a program for Python has no use for, and in which holes were found.
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsmount": (432, 432),
    "mount_setattr": (442, 442),
    "unshare": (272, 97),
    "setns": (308, 268),
    "open_by_handle_at": (304, 265),
    "kexec_load": (246, 104),
    "init_module": (175, 105),
    "finit_module": (313, 273),
}
"""System calls that are refused, with their numbers on x86_64 and on aarch64."""
_SIGNALS: Mapping[str, tuple[int, int]] = {
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "pidfd_send_signal": (424, 424),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
}
_CLONE, _CLONE3, _PIPE_SIZE, _FCNTL, _PRLIMIT = (56, 220), (435, 435), 1031, (72, 25), (302, 261)
_NEW_NAMESPACES = 0x7E020000
_X32 = 0x40000000  # calls of another interface, with numbers of their own

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_AT_NUMBER, _AT_ARCHITECTURE, _AT_ARGUMENTS = 0, 4, 16

_SET_SECCOMP, _FILTER = 22, 2

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_READ_FILES, _READ = 0x5, 0xD  # execute and read a file; and read a folder
_WRITE_FILE = 0x2
_FILES_BY_VERSION = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF, 5: 0xFFFF}
_KEEPS_NETWORK, _KEEPS_SIGNALS = 4, 6  # versions
_NETWORK, _SCOPES = 0x3, 0x3  # bind and connect; sockets without a name in the file system, and signals


def refuse_system_calls(signals: bool) -> None:
    """Refuses system calls to this process and its children; to be called after `forbid_privileges`.

    Args:
        signals: True to refuse signals, too, also to itself: where nothing else keeps them from other processes.

    Raises:
        OSError: The system cannot do it.
    """
    machine = platform.machine()
    if machine not in _ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"no filter of system calls is known for {machine}")
    column = list(_ARCHITECTURES).index(machine)
    refused = [numbers[column] for numbers in (*_NUMBERS.values(), *(_SIGNALS.values() if signals else ()))]
    program = b"".join(_instructions(_ARCHITECTURES[machine], column, refused))
    steps = ctypes.create_string_buffer(program)
    given = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(steps)))
    control_process(_SET_SECCOMP, _FILTER, ctypes.addressof(given))


def _instructions(architecture: int, column: int, refused: Iterable[int]) -> list[bytes]:
    """The filter: instructions of classic BPF over a system call's number and arguments."""
    refuse = _step(_RETURN, _REFUSE | errno.EPERM)
    steps = [
        _step(_LOAD, _AT_ARCHITECTURE),
        _step(_EQUAL, architecture, 1, 0),
        _step(_RETURN, _KILL),
        _step(_LOAD, _AT_NUMBER),
    ]
    if column == 0:
        steps += [_step(_AT_LEAST, _X32, 0, 1), refuse]
    for number in refused:
        steps += [_step(_EQUAL, number, 0, 1), refuse]
    # Where its flags cannot be read the C library falls back to the older call.
    steps += [_step(_EQUAL, _CLONE3[column], 0, 1), _step(_RETURN, _REFUSE | errno.ENOSYS)]
    for number, argument, test, value in (
        (_CLONE[column], 0, _ANY_BIT, _NEW_NAMESPACES),
        (_FCNTL[column], 1, _EQUAL, _PIPE_SIZE),
    ):
        steps += [
            _step(_EQUAL, number, 0, 4),
            _step(_LOAD, _AT_ARGUMENTS + 8 * argument),
            _step(test, value, 0, 1),
            refuse,
            _step(_RETURN, _ALLOW),
        ]
    # Limits of other processes are not its to change.
    steps += [
        _step(_EQUAL, _PRLIMIT[column], 0, 3),
        _step(_LOAD, _AT_ARGUMENTS),
        _step(_EQUAL, 0, 1, 0),
        refuse,
    ]
    return [*steps, _step(_RETURN, _ALLOW)]


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)


def find_landlock_version() -> int:
    """The version of Landlock that this kernel has; 0: none."""
    try:
        return call_system(_CREATE_RULESET, None, 0, 1)
    except OSError:
        return 0


def keeps_signals() -> bool:
    """True if Landlock keeps a process from sending signals to others."""
    return find_landlock_version() >= _KEEPS_SIGNALS


def confine_files(readable: Iterable[str], folder: str) -> None:
    """Lets this process and its children only read these files, and use a folder; forbids TCP and signals to others.

    TCP and signals take a version of Landlock that covers them, see `keeps_signals`.

    Raises:
        OSError: The system cannot do it.
    """
    version = find_landlock_version()
    if version == 0:
        raise OSError(errno.ENOSYS, "this kernel has no Landlock")
    files = next(rights for since, rights in reversed(_FILES_BY_VERSION.items()) if version >= since)
    handled = [files]
    if version >= _KEEPS_NETWORK:
        handled.append(_NETWORK)
    if version >= _KEEPS_SIGNALS:
        handled.append(_SCOPES)
    size = 8 * len(handled)
    rules = call_system(_CREATE_RULESET, (ctypes.c_uint64 * len(handled))(*handled), size, 0)
    for path in readable:
        if Path(path).exists():
            device = _WRITE_FILE if path == os.devnull else 0
            _allow(rules, path, _READ if Path(path).is_dir() else _READ_FILES | device)
    _allow(rules, folder, files)
    call_system(_RESTRICT_SELF, rules, 0)
    os.close(rules)


def _allow(rules: int, path: str, rights: int) -> None:
    below = os.open(path, os.O_PATH | os.O_CLOEXEC)
    rule = ctypes.create_string_buffer(struct.pack("=Qi", rights, below))
    call_system(_ADD_RULE, rules, 1, rule, 0)
    os.close(below)
