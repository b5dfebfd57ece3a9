"""What no program gets past: memory that a process's own limit does not count, and what is outside
of its sandbox.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ordinary_user import SYSTEM_PYTHON, become_ordinary_user, for_all_users, in_fork

from lockstep.helpers.sandbox.sandbox import CodeSandbox, ProgramLimits

LIMITS = ProgramLimits(cpu_s=2, wall_s=20.0, memory_mb=128)
SANDBOX = CodeSandbox(LIMITS, interpreter=SYSTEM_PYTHON)

pytestmark = [
    pytest.mark.usefixtures("sandboxes"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]


C = "import ctypes\nlibc = ctypes.CDLL(None)\n"
HOARDS = {
    "shared memory of System V": C + "print(libc.shmget(0, 1 << 20, 0o1600))",
    "a queue of System V": C + "print(libc.msgget(0, 0o1600))",
    "shared memory without a file": "import mmap\nmmap.mmap(-1, 1 << 20)",
    "shared memory of a device": (
        "import mmap\nmmap.mmap(open('/dev/zero', 'r+').fileno(), 1 << 20)"
    ),
    "a file without a name": "import os\nos.memfd_create('x')",
    "files in flight": "import socket\na, b = socket.socketpair()\nsocket.send_fds(a, [b'x'], [0])",
    "a large buffer": (
        "from socket import *\nsocketpair()[0].setsockopt(SOL_SOCKET, SO_SNDBUF, 1 << 24)"
    ),
    "a large pipe": "import fcntl, os\nfcntl.fcntl(os.pipe()[1], fcntl.F_SETPIPE_SZ, 1 << 20)",
    "a file system": C + "print(libc.mount(b'none', b'/tmp', b'tmpfs', 0, None))",
    "new namespaces": C + "print(libc.unshare(0x10000000))",
    "a fork into new namespaces": C + "print(libc.syscall(56, 0x10000011, 0, 0, 0, 0) and -1)",
    "limits of others": (
        "import resource, os\nresource.prlimit(os.getppid() or 1, resource.RLIMIT_AS)"
    ),
    "a file that is too large": "open('a', 'wb').truncate((8 << 20) + 1)",
    "files outside of its folder": "open('/a', 'w')",
    "many empty files": "for number in range(1 << 20): open(str(number), 'w').close()",
    "many full files": "for number in range(64): open(str(number), 'wb').write(bytes(1 << 20))",
}


@pytest.mark.parametrize("way", HOARDS)
def test_memory_that_a_limit_does_not_count_is_refused(way: str) -> None:
    assert SANDBOX.capture_output(HOARDS[way], "") in (None, "-1\n")


TOGETHER = """
import os, time
read, write = os.pipe()
for _ in range(3):
    if os.fork() == 0:
        if ORPHANS and os.fork():
            os._exit(0)
        held = bytearray(SIZE << 20)
        os.write(write, b'x')
        time.sleep(3)
        os._exit(0)
got = b''
while len(got) < 3: got += os.read(read, 3)
time.sleep(0.5)
print('held')
"""


@pytest.mark.parametrize("orphans", [False, True], ids=["children", "orphans"])
def test_all_processes_of_a_program_have_one_memory_limit(orphans: bool) -> None:
    program = f"ORPHANS = {orphans}\n{TOGETHER}"
    assert SANDBOX.capture_output(program.replace("SIZE", "1"), "") == "held\n"
    assert SANDBOX.capture_output(program.replace("SIZE", "80"), "") is None


def test_memory_of_program_is_limited_while_its_test_waits() -> None:
    program = (
        "ORPHANS = False\ndef hold():" + TOGETHER.replace("\n", "\n    ") + "\n    return 'held'"
    )
    assert SANDBOX.passes_test(program.replace("SIZE", "1"), "assert hold() == 'held'")
    assert not SANDBOX.passes_test(program.replace("SIZE", "80"), "assert hold() == 'held'")


def test_without_bubblewrap_memory_is_limited_too() -> None:
    plain = replace(SANDBOX, is_isolated=False)
    assert plain.capture_output("ORPHANS = False\n" + TOGETHER.replace("SIZE", "1"), "") == "held\n"
    assert plain.capture_output("ORPHANS = False\n" + TOGETHER.replace("SIZE", "80"), "") is None


REACHES = """
import os, socket
def attempt(name, *arguments):
    try:
        eval(name)(*arguments)
        print(name, arguments)
    except OSError:
        pass
for path in PATHS:
    for name in ('os.stat', 'os.listdir', 'open'):
        attempt(name, path)
for name, *arguments in (
    ('os.chmod', 0o777), ('os.chown', os.getuid(), os.getgid()), ('os.utime',), ('os.getxattr', 'user.x'),
    ('os.open', os.O_WRONLY | os.O_CREAT),
):
    attempt(name, PATHS[0], *arguments)  # only of a file that the test has made: without isolation they change it
attempt('os.mknod', 'disk', 0o60600, os.makedev(254, 0))
attempt('os.kill', PROCESS, 0)
attempt('os.sched_getaffinity', PROCESS)
attempt('os.getpriority', os.PRIO_PROCESS, PROCESS)
attempt('os.setuid', 0)
attempt('socket.create_connection', ADDRESS, 3)
attempt('socket.socket', socket.AF_UNIX, socket.SOCK_DGRAM)
open('own', 'w').write('x')
print(os.listdir(), len(open('/usr/lib/os-release').read()) > 0)
"""


@contextmanager
def escapes(folder: Path) -> Iterator[str]:
    """A program that tries what is outside; a file and a server of ours are there to be reached."""
    (folder / "ours").write_text("x")
    paths = [
        str(folder / "ours"),
        __file__,
        "/etc/passwd",
        "/proc/self/mem",
        "/proc",
        "/sys",
        "/dev/shm",
        "/home",
    ]
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"PATHS, ADDRESS, PROCESS = {paths}, {server.getsockname()}, {os.getpid()}\n{REACHES}"


def test_sandboxed_program_reaches_no_outside_file_process_or_network(tmp_path: Path) -> None:
    with escapes(tmp_path) as program:
        assert SANDBOX.capture_output(program, "") == "['own'] True\n"
        reached = replace(SANDBOX, is_isolated=False).capture_output(program, "")
        assert reached is not None
        assert "os.kill" in reached
        assert "os.chmod" in reached


@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests are run by an ordinary user already")
def test_sandbox_isolation_and_limits_hold_for_non_root_user(tmp_path: Path) -> None:
    with for_all_users(), escapes(tmp_path) as program:

        def run() -> dict[str, Any]:
            become_ordinary_user()
            together = "ORPHANS = True\n" + TOGETHER
            return {
                "reached": SANDBOX.capture_output(program, ""),
                "hoarded": [
                    way
                    for way in HOARDS
                    if SANDBOX.capture_output(HOARDS[way], "") not in (None, "-1\n")
                ],
                "held": [
                    SANDBOX.capture_output(together.replace("SIZE", size), "")
                    for size in ("1", "80")
                ],
            }

        found = in_fork(run)
    assert found == {"reached": "['own'] True\n", "hoarded": [], "held": ["held\n", None]}
