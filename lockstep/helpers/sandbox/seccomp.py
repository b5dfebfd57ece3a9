"""A libseccomp filter of system calls for sockets and for memory outside the limits.

A blocked call fails with EPERM. Bubblewrap applies the filter to a program.
"""

from __future__ import annotations

import ctypes
import errno
import os
from functools import cache

_REFUSED = (
    # Memory outside processes: System V, message queues, anonymous files, files in flight, large
    # buffers.
    *(
        "shmget",
        "shmat",
        "semget",
        "semop",
        "msgget",
        "msgsnd",
        "mq_open",
        "memfd_create",
        "memfd_secret",
    ),
    *("sendmsg", "sendmmsg", "setsockopt", "vmsplice", "io_uring_setup"),
    # All networking, even kinds without a namespace; socket pairs within the program stay allowed.
    "socket",
    # Privileges in new namespaces, and kernel features that Python programs do not need.
    *(
        "unshare",
        "setns",
        "add_key",
        "request_key",
        "keyctl",
        "bpf",
        "perf_event_open",
        "userfaultfd",
        "ptrace",
    ),
)
_MASKED_EQUAL = 7
_NOT_EQUAL = 1  # of `enum scmp_compare`
_NEW_USERS = 0x10000000
_SHARED_WITHOUT_FILE = 0x21  # MAP_SHARED and MAP_ANONYMOUS
_SET_PIPE_SIZE = 1031
_PARTLY_REFUSED = (
    ("clone", 0, _MASKED_EQUAL, _NEW_USERS, _NEW_USERS),
    ("mmap", 3, _MASKED_EQUAL, _SHARED_WITHOUT_FILE, _SHARED_WITHOUT_FILE),
    ("fcntl", 1, _MASKED_EQUAL, 0xFFFFFFFF, _SET_PIPE_SIZE),
    ("prlimit64", 0, _NOT_EQUAL, 0, 0),
)
"""Calls blocked by an argument's value: name, argument, comparison, and its two numbers."""

_LIBRARY = "libseccomp.so.2"
_ALLOW = 0x7FFF0000
_REFUSE = 0x00050000


class _ArgumentComparison(ctypes.Structure):
    _fields_ = (
        ("argument", ctypes.c_uint),
        ("comparison", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    )


@cache
def build_filter() -> bytes:
    """Builds the filter for this machine.

    Raises:
        OSError: libseccomp is not installed.
    """
    library = ctypes.CDLL(_LIBRARY)
    library.seccomp_init.restype = ctypes.c_void_p
    rules = ctypes.c_void_p(library.seccomp_init(_ALLOW))

    def refuse_call(name: str, error: int, *comparisons: _ArgumentComparison) -> None:
        number = library.seccomp_syscall_resolve_name(name.encode())
        given = (_ArgumentComparison * len(comparisons))(*comparisons)
        library.seccomp_rule_add_array(rules, _REFUSE | error, number, len(comparisons), given)

    for name in _REFUSED:
        refuse_call(name, errno.EPERM)
    for name, *comparison in _PARTLY_REFUSED:
        refuse_call(name, errno.EPERM, _ArgumentComparison(*comparison))
    refuse_call(
        "clone3", errno.ENOSYS
    )  # its flags are unreadable; the C library falls back to `clone`
    file = os.memfd_create("filter")
    try:
        library.seccomp_export_bpf(rules, file)
        return os.pread(file, os.fstat(file).st_size, 0)
    finally:
        os.close(file)
        library.seccomp_release(rules)
