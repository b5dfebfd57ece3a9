"""Programs that nobody has read: what they print comes back, and nothing else of them is left or seen."""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from ordinary_user import SYSTEM_PYTHON, become_ordinary_user, in_fork, own_python

from lockstep.helpers.sandbox import linux, warden
from lockstep.helpers.sandbox.jail import Limits
from lockstep.helpers.sandbox.sandbox import Sandbox, SandboxError

LIMITS = Limits(cpu_s=1, wall_s=10.0, memory_mb=128, file_mb=1, processes=8)
FORKS_HERE = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

pytestmark = pytest.mark.usefixtures("sandboxes")


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    sandbox = Sandbox(LIMITS)
    yield sandbox
    sandbox.close()


def printed(sandbox: Sandbox, *lines: str, given: str = "") -> str | None:
    return sandbox.output("\n".join(lines), given)


def test_a_program_reads_and_prints(sandbox: Sandbox) -> None:
    assert printed(sandbox, "print(int(input()) * 2)", "print(input())", given="21\nüñ→\n") == "42\nüñ→\n"
    assert printed(sandbox, "pass") == ""
    assert printed(sandbox, "import sys", "print(__name__, sys.argv, __file__)") is None
    assert printed(sandbox, "import sys", "print(__name__, sys.argv)") == "__main__ ['main.py']\n"


def test_it_may_end_itself_and_only_0_is_good(sandbox: Sandbox) -> None:
    assert printed(sandbox, "print('a')", "exit()", "print('b')") == "a\n"
    assert printed(sandbox, "print('a')", "quit(1)") is None
    assert printed(sandbox, "print('a')", "1 / 0") is None
    assert printed(sandbox, "print('a'") is None
    assert printed(sandbox, "import os", "os.abort()") is None
    assert printed(sandbox, "print('\0')") is None


def test_what_is_no_text_comes_back_as_what_it_is_not(sandbox: Sandbox) -> None:
    assert printed(sandbox, "import os", r"os.write(1, b'\xff\xfe')") == "��"
    assert printed(sandbox, "print('\ud800')") == "?\n"


def test_a_loop_ends_by_its_cpu_time_and_a_sleep_by_the_clock(sandbox: Sandbox) -> None:
    """Each by that limit alone: the other one would come after the test's own deadline."""
    assert printed(Sandbox(replace(LIMITS, wall_s=3600.0)), "while True: pass") is None
    assert printed(Sandbox(replace(LIMITS, wall_s=0.5)), "import time", "time.sleep(3600)") is None


def test_memory_is_limited(sandbox: Sandbox) -> None:
    hold = "held = bytearray({} << 20)"
    assert printed(sandbox, hold.format(64), "print('held')") == "held\n"
    assert printed(sandbox, hold.format(160), "print('held')") is None


FORKS = """
import os, time
count = 0
while True:
    try:
        if os.fork() == 0:
            time.sleep(1000)
    except BlockingIOError:
        break
    count += 1
print(count)
"""


def test_processes_are_limited_and_all_end(sandbox: Sandbox) -> None:
    assert printed(sandbox, FORKS) == "7\n"
    hasty = Sandbox(replace(LIMITS, wall_s=1.0))
    assert printed(hasty, "import os", "while True:", "  try: os.fork()", "  except OSError: pass") is None
    assert descendants(hasty) == []


def test_output_and_files_are_limited(sandbox: Sandbox) -> None:
    assert printed(sandbox, "print('x' * 1_000_000)") == "x" * 1_000_000 + "\n"
    assert printed(sandbox, "while True: print('x' * 1000)") is None
    write = "with open('a', 'wb') as file: file.write(bytes({}))"
    assert printed(sandbox, write.format(1 << 20), "print('written')") == "written\n"
    assert printed(sandbox, write.format((1 << 20) + 1), "print('written')") is None
    many = ["for number in range(1000):", "  with open(str(number), 'wb') as file: file.write(bytes(1 << 20))"]
    assert printed(sandbox, *many) is None


def test_its_folder_is_empty_and_its_own(sandbox: Sandbox) -> None:
    assert printed(sandbox, "open('left', 'w').write('x')", "import os", "print(os.listdir())") is not None
    assert printed(sandbox, "import os", "print(os.listdir())") == "['main.py']\n"


def test_it_sees_no_variable_and_no_descriptor(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "hunter2")
    fresh = Sandbox(LIMITS)
    # Python itself sets LC_CTYPE where the locale is C.
    assert printed(fresh, "import os", "print(set(os.environ) - {'LC_CTYPE'})") == "set()\n"
    descriptors = [
        "import os",
        "def opened(i):",
        "  try: os.fstat(i)",
        "  except OSError: return False",
        "  return True",
    ]
    assert printed(sandbox, *descriptors, "print([i for i in range(64) if opened(i)])") == "[0, 1, 2]\n"


def test_it_sees_no_file_of_ours_and_changes_none(sandbox: Sandbox, tmp_path: Path) -> None:
    ours = [str(tmp_path), __file__, os.getcwd(), str(Path.home() / ".bashrc"), "/etc/passwd", "/proc/1", "/sys/kernel"]
    assert printed(sandbox, "import os", f"print([path for path in {ours} if os.path.exists(path)])") == "[]\n"
    places = [f"{folder}/x" for folder in ("/usr", "/bin", os.path.dirname(sandbox.interpreter), sys.base_exec_prefix)]
    tries = [f"for path in {places}:", "  try: open(path, 'w'); print(path)", "  except OSError: pass"]
    assert printed(sandbox, *tries) == ""


CONNECTIONS = """
import socket
for family, address in FAMILIES:
    try:
        with socket.socket(family) as made:
            made.settimeout(3)
            made.connect(address)
            print("connected", address)
    except OSError:
        pass
print("tried")
"""


def test_it_reaches_no_network_and_no_socket_of_this_machine(sandbox: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as named:
        name = f"\0lockstep-test-{os.getpid()}"  # in no folder, so that only the namespace keeps it apart
        named.bind(name)
        named.listen()
        families = [(int(socket.AF_INET), tcp.getsockname()), (int(socket.AF_UNIX), name)]
        families += [(int(socket.AF_INET), ("1.1.1.1", 53)), (int(socket.AF_INET6), ("2606:4700::1111", 53))]
        assert printed(sandbox, f"FAMILIES = {families}", CONNECTIONS) == "tried\n"


def test_it_ends_nothing_but_itself(sandbox: Sandbox) -> None:
    kill = [
        "import os, signal",
        "for process in {}:",
        "  try: os.kill(process, signal.SIGKILL)",
        "  except OSError: pass",
    ]
    for processes in (
        "(os.getppid(), os.getpgrp())",
        f"({os.getpid()}, {sandbox._warden.pid})",
        "range(2, 40000)",
        "(-1, 0)",
    ):
        printed(sandbox, kill[0], kill[1].format(processes), *kill[2:])
        assert printed(sandbox, "print('on')") == "on\n"


ORPHAN = """
import os, time
read, write = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(write, str(os.getpid()).encode())
        time.sleep(1000)
    os._exit(0)
print(os.read(read, 9).decode())
"""


@pytest.fixture(scope="module")
def own_tmp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which only the programs of `limited` have theirs."""
    return tmp_path_factory.mktemp("programs")


@pytest.fixture(scope="module")
def limited(own_tmp: Path) -> Iterator[Sandbox]:
    """Without namespaces."""
    sandbox = Sandbox(LIMITS, isolation="limits", interpreter=SYSTEM_PYTHON)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(own_tmp))
        where = printed(sandbox, "import os", "print(os.getcwd())")  # starts it
    assert where is not None
    assert where.startswith(str(own_tmp))
    yield sandbox
    sandbox.close()


def descendants(sandbox: Sandbox) -> list[psutil.Process]:
    return psutil.Process(sandbox._warden.pid).children(recursive=True)


def test_nothing_outlives_its_program(sandbox: Sandbox, limited: Sandbox) -> None:
    assert printed(sandbox, ORPHAN) == "3\n"
    orphan = printed(limited, ORPHAN)
    assert orphan is not None
    assert not psutil.pid_exists(int(orphan))
    for one in (sandbox, limited):
        assert printed(one, ORPHAN, "while True: pass") is None
        assert descendants(one) == []


def test_a_program_ends_with_the_process_that_started_it() -> None:
    sandbox = Sandbox(LIMITS)
    sandbox.start()
    pid, failures = sandbox._warden.pid, []
    assert pid is not None

    def wait() -> None:
        with pytest.raises(SandboxError, match=r"ended \(killed by SIGKILL\); the same command resumes"):
            printed(sandbox, "import time", "time.sleep(100)")
        failures.append(None)

    waiting = threading.Thread(target=wait)
    waiting.start()
    while len(running := descendants(sandbox)) < 2 or running[-1].cmdline()[:1] != [sandbox.interpreter]:
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    waiting.join()
    assert failures == [None]
    assert psutil.wait_procs(running, timeout=5)[1] == []
    assert printed(sandbox, "print('on')") == "on\n"


def test_limits_alone_hold_too_and_leave_no_folder(limited: Sandbox, own_tmp: Path) -> None:
    assert printed(limited, "print(int(input()) * 2)", given="21") == "42\n"
    assert printed(limited, "while True: pass") is None
    assert printed(limited, "held = bytearray(160 << 20)") is None
    assert printed(limited, FORKS) == "7\n"
    assert printed(limited, "while True: print('x' * 1000)") is None
    own = ["import os", "os.mkdir('a')", "open('a/b', 'w').close()", "os.chmod('a', 0)", "print(os.listdir())"]
    assert printed(limited, *own) in ("['main.py', 'a']\n", "['a', 'main.py']\n")
    assert list(own_tmp.iterdir()) == []


ASKED = """
import os, sys
print(os.getuid(), os.path.exists("/root"))
for folder in (os.path.dirname(sys.executable), "/usr", "/bin"):
    try:
        open(folder + "/x", "w")
        print("wrote")
    except OSError:
        pass
"""
KILLS = "import os, signal\nos.kill(-1, signal.SIGKILL)"


def test_folders_deeper_than_python_follows_are_removed(limited: Sandbox, own_tmp: Path) -> None:
    deep = ("import os", "for _ in range(3000):", "    os.mkdir('a')", "    os.chdir('a')", "print('deep')")
    assert printed(limited, *deep) == "deep\n"
    assert printed(limited, "print('again')") == "again\n"
    assert list(own_tmp.iterdir()) == []


def test_a_test_that_ends_its_process_has_not_passed(limited: Sandbox) -> None:
    assert not limited.test("x = 1", "import os\nos._exit(0)").passed
    assert limited.test("x = 1", "assert x == 1").passed


@FORKS_HERE
@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests are run by an ordinary user already")
def test_an_ordinary_user_can_use_it() -> None:
    """In a fork that becomes one."""
    with own_python() as python:
        forks, orphan, loop, _, asked = in_fork(
            lambda: as_a_user(python, FORKS, ORPHAN, "while True: pass", KILLS, ASKED)
        )
    assert forks == {"code": 0, "output": "7\n"}
    assert orphan == {"code": 0, "output": "3\n"}
    assert loop == {"code": 137, "output": None}
    assert asked == {"code": 0, "output": "65534 False\n"}


def as_a_user(python: str, *programs: str) -> list[dict[str, Any]]:
    become_ordinary_user()
    answer = warden.answers(json.dumps({"limits": asdict(LIMITS), "interpreter": python, "isolation": "namespaces"}))
    return [next(answer({"program": program, "input": "", "tested": False})) for program in programs]


def test_test_code_sees_what_the_program_defines(sandbox: Sandbox) -> None:
    program = "from __future__ import annotations\nimport math\n_half = 0.5\ndef area(r): return math.pi * r * r"
    assert sandbox.test(program, "assert area(1) == math.pi\nassert _half == 0.5 and __name__ == 'solution'").passed
    assert not sandbox.test(program, "assert area(1) == 3").passed
    assert not sandbox.test(program, "while True: pass").passed
    assert sandbox.test("if __name__ == '__main__':\n    value = input()", "pass  # unfinished").passed
    assert sandbox.test("value = 1", "def check(value):\n    assert value == 1\ncheck(value)").passed


@pytest.mark.parametrize(
    "program",
    ["exit()", "import os\nos._exit(0)", "raise SystemExit", "import os\nos.execv('/usr/bin/true', ['true'])"],
)
def test_a_program_that_ends_before_its_test_has_not_passed(sandbox: Sandbox, program: str) -> None:
    assert not sandbox.test(program, "pass").passed


def test_a_program_does_not_read_its_test(sandbox: Sandbox) -> None:
    assert sandbox.test("import sys\nread = sys.stdin.read()", "assert read == ''").passed


def test_it_crosses_a_process_border(sandbox: Sandbox) -> None:
    again = pickle.loads(pickle.dumps(sandbox))
    assert again == sandbox
    assert printed(again, "print(1)") == "1\n"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"interpreter": "/absent/bin/python3"}, r"No such file or directory"),
        ({"limits": replace(LIMITS, memory_mb=1)}, "a trial program failed, so its limits are too low"),
    ],
)
def test_what_cannot_be_set_up_is_said_at_the_start(options: dict[str, Any], why: str) -> None:
    with pytest.raises(SandboxError, match=rf"programs cannot be run in a sandbox here \(.*{why}"):
        Sandbox(**{"limits": LIMITS, **options}).start()


@FORKS_HERE
def test_where_no_namespaces_are_allowed_nothing_is_run() -> None:
    """In a fork that may make none, for its user is not known where it is."""
    assert in_fork(without_namespaces) == "unshare: Operation not permitted"


def without_namespaces() -> str:
    try:
        linux.unshare(linux.NEW_USERS)
        warden.answers(json.dumps({"limits": asdict(LIMITS), "interpreter": SYSTEM_PYTHON, "isolation": "namespaces"}))
    except Exception as error:
        return str(error)
    return "it began"
