"""What no program gets past: memory that a process's own limit does not count, and filters in place of namespaces."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import socket
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from ordinary_user import SYSTEM_PYTHON, become_ordinary_user, in_fork, own_python

from lockstep.helpers.sandbox import filters, linux, warden
from lockstep.helpers.sandbox.jail import Isolation, Limits
from lockstep.helpers.sandbox.sandbox import Sandbox

LIMITS = Limits(cpu_s=2, wall_s=20.0, memory_mb=128, file_mb=1, processes=8)
FORKS_HERE = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

pytestmark = pytest.mark.usefixtures("sandboxes")


@pytest.fixture(scope="module", params=["namespaces", "filters", "limits"])
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    sandbox = Sandbox(LIMITS, request.param, SYSTEM_PYTHON)
    yield sandbox
    sandbox.close()


@pytest.fixture(scope="module")
def filtered() -> Iterator[Sandbox]:
    sandbox = Sandbox(LIMITS, "filters", SYSTEM_PYTHON)
    yield sandbox
    sandbox.close()


C = "import ctypes\nlibc = ctypes.CDLL(None)\n"
HOARDS = {
    "shared memory of System V": C + "print(libc.shmget(0, 1 << 20, 0o1600))",
    "a queue of System V": C + "print(libc.msgget(0, 0o1600))",
    "a file without a name": "import os\nos.memfd_create('x')",
    "files in flight": "import socket\na, b = socket.socketpair()\nsocket.send_fds(a, [b'x'], [0])",
    "a large buffer": "from socket import *\nsocketpair()[0].setsockopt(SOL_SOCKET, SO_SNDBUF, 1 << 24)",
    "a large pipe": "import fcntl, os\nfcntl.fcntl(os.pipe()[1], fcntl.F_SETPIPE_SZ, 1 << 20)",
    "a file system": C + "print(libc.mount(b'none', b'/tmp', b'tmpfs', 0, None))",
    "new namespaces": C + "print(libc.unshare(0x10000000))",
    "limits of others": "import resource, os\nresource.prlimit(os.getppid() or 1, resource.RLIMIT_AS)",
}


@pytest.mark.parametrize("way", HOARDS)
def test_what_a_limit_does_not_count_is_refused(sandbox: Sandbox, way: str) -> None:
    assert sandbox.output(HOARDS[way], "") in (None, "-1\n")


TOGETHER = """
import os, time
read, write = os.pipe()
for _ in range(6):
    if os.fork() == 0:
        held = bytearray({} << 20)
        os.write(write, b'x')
        time.sleep(3)
        os._exit(0)
got = b''
while len(got) < 6: got += os.read(read, 6)
time.sleep(0.5)
print('held')
"""


def test_all_processes_of_a_program_have_one_limit_together(sandbox: Sandbox) -> None:
    assert sandbox.output(TOGETHER.format(1), "") == "held\n"
    assert sandbox.output(TOGETHER.format(40), "") is None


REACHES = """
import os, socket
for path in PATHS:
    try:
        open(path, 'rb' if os.path.isfile(path) else 'wb').close()
        print('opened', path)
    except OSError: pass
try:
    print(os.listdir('/proc'))
except OSError: pass
try:
    socket.create_connection(ADDRESS, 3)
    print('connected')
except OSError: pass
try:
    os.kill(PROCESS, 0)
    print('reached a process')
except OSError: pass
open('own', 'w').write('x')
print(os.listdir() != [], len(open('/usr/lib/os-release').read()) > 0)
"""


def reaches(address: tuple[str, int], folder: str) -> str:
    paths = [
        __file__,
        "/etc/passwd",
        "/proc/self/mem",
        f"{folder}/new",
        f"/tmp/{os.path.basename(folder)}",
        "/dev/shm/x",
    ]
    return f"PATHS, ADDRESS, PROCESS = {paths}, {address}, {os.getpid()}\n{REACHES}"


def test_filters_keep_files_network_and_processes(filtered: Sandbox, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert filtered.output(reaches(server.getsockname(), str(tmp_path)), "") == "True True\n"
    assert filtered.test("def double(x): return 2 * x", "assert double(4) == 8").passed
    assert not filtered.test("def double(x): return x", "assert double(4) == 8").passed


def start(isolation: Isolation, interpreter: str = SYSTEM_PYTHON) -> Any:
    return warden.answers(json.dumps({"limits": asdict(LIMITS), "interpreter": interpreter, "isolation": isolation}))


DOCKER = {"unshare": (272, 97), "setns": (308, 268), "mount": (165, 40)}
"""Calls that a plain container refuses, to its root too."""
UBUNTU = {"mount": (165, 40), "mount_setattr": (442, 442)}
"""Calls that fail where a user's namespaces can be made, and give no rights."""
DOCKER_RIGHTS = 0xA80425FB
"""Capabilities that root has in a plain container."""


def drop_rights(kept: int) -> None:
    """Leaves this process these capabilities."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    sets = (ctypes.c_uint32 * 6)(kept, kept, 0, 0, 0, 0)
    assert ctypes.CDLL(None).capset(header, sets) == 0


@FORKS_HERE
@pytest.mark.skipif(os.geteuid() != 0, reason="is about root")
def test_filters_hold_for_root_in_a_plain_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Emulated by its capabilities, and by the calls that it refuses."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def run() -> list[Any]:
            drop_rights(DOCKER_RIGHTS)
            with monkeypatch.context() as patch:
                patch.setattr(filters, "_NUMBERS", DOCKER)
                linux.forbid_privileges()
                filters.refuse_system_calls(signals=False)
            with pytest.raises(ValueError, match="unshare: Operation not permitted; this process is under a filter"):
                start("namespaces")
            answer = start("filters")
            asked = {"program": reaches(server.getsockname(), str(tmp_path)), "input": "", "tested": False}
            double = {"program": "def double(x): return 2 * x", "input": "assert double(4) == 8", "tested": True}
            greedy = {"program": TOGETHER.format(40), "input": "", "tested": False}
            return [next(answer(asked)), next(answer(double))["passed"], next(answer(greedy)), next(answer(None))]

        reached, passed, held, strength = in_fork(run)
    assert reached == {"code": 0, "output": "True True\n"}
    assert passed
    assert held["output"] is None
    assert strength.startswith("medium: without network and files of yours, by filters and not namespaces; ")


@FORKS_HERE
@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("kernel/apparmor_restrict_unprivileged_userns", "AppArmor takes the rights of users' namespaces"),
        ("user/max_user_namespaces", "users may have no namespaces"),
    ],
)
def test_the_system_s_own_setting_is_named(monkeypatch: pytest.MonkeyPatch, file: str, said: str) -> None:
    value = "1" if "restrict" in file else "0"
    monkeypatch.setattr(linux, "_read", lambda path: value if path == f"/proc/sys/{file}" else "")
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert str(linux.find_obstacle()).startswith(said)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert linux.find_obstacle() is None


@FORKS_HERE
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become an ordinary user")
@pytest.mark.parametrize("signals", [6, 5], ids=["kept by Landlock", "refused"])
@pytest.mark.parametrize(("refused", "said"), [(DOCKER, "unshare: "), (UBUNTU, "mount /: ")], ids=["Docker", "Ubuntu"])
def test_filters_hold_for_an_ordinary_user_without_namespaces(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    signals: int,
    refused: Mapping[str, tuple[int, int]],
    said: str,
) -> None:
    """Emulated: a plain container, and Ubuntu 24.04."""
    monkeypatch.setattr(filters, "find_landlock_version", lambda: signals)
    with own_python() as python, socket.create_server(("127.0.0.1", 0)) as server:

        def run() -> list[Any]:
            become_ordinary_user()
            linux.forbid_privileges()
            with monkeypatch.context() as patch:
                patch.setattr(filters, "_NUMBERS", refused)
                patch.setattr(filters, "_NEW_NAMESPACES", 0)  # only these calls
                filters.refuse_system_calls(signals=False)
            with pytest.raises(ValueError, match=f"{said}Operation not permitted; this process is under a filter"):
                start("namespaces", python)
            answer = start("filters", python)
            asked = {"program": reaches(server.getsockname(), str(tmp_path)), "input": "", "tested": False}
            double = {"program": "def double(x): return 2 * x", "input": "assert double(4) == 8", "tested": True}
            return [next(answer(asked)), next(answer(double))["passed"]]

        assert in_fork(run) == [{"code": 0, "output": "True True\n"}, True]


@pytest.mark.parametrize(
    ("isolation", "said"),
    [
        ("namespaces", "strong: in namespaces, without network and files of yours; system calls are filtered; "),
        ("filters", "medium: without network and files of yours, by filters and not namespaces; "),
        ("limits", "weak: programs reach the files and processes that their user does; system calls are filtered; "),
    ],
)
def test_a_sandbox_says_how_strong_it_is(isolation: Isolation, said: str) -> None:
    sandbox = Sandbox(LIMITS, isolation, SYSTEM_PYTHON)
    assert sandbox.strength() == f"{said}a program holds at most 128 MB"
    sandbox.close()


@FORKS_HERE
@pytest.mark.skipif(os.geteuid() != 0, reason="limits of shared memory are root's to set")
def test_where_system_calls_cannot_be_filtered_namespaces_still_refuse_shared_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "m68k")

    def run() -> list[Any]:
        answer = start("namespaces")
        ways = ("shared memory of System V", "a queue of System V")
        asked = [{"program": HOARDS[way], "input": "", "tested": False} for way in ways]
        return [next(answer(None)), *(next(answer(question))["output"] for question in asked)]

    strength, *outputs = in_fork(run)
    assert "system calls cannot be filtered here, so a program may hold more memory than its limit" in strength
    assert outputs == ["-1\n", "-1\n"]
    assert in_fork(lambda: start("filters")) == "no filter of system calls is known for m68k"
