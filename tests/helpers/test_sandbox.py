"""Programs that nobody has read: what they print comes back, and nothing else of them is left or
seen.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from lockstep.helpers.sandbox.sandbox import CodeSandbox, ProgramLimits, SandboxError

LIMITS = ProgramLimits(cpu_s=1, wall_s=10.0, memory_mb=128)

pytestmark = pytest.mark.usefixtures("sandboxes")


@pytest.fixture(scope="module")
def sandbox() -> CodeSandbox:
    return CodeSandbox(LIMITS)


def printed(sandbox: CodeSandbox, *lines: str, given: str = "") -> str | None:
    return sandbox.capture_output("\n".join(lines), given)


def test_program_output_for_given_input_is_returned(sandbox: CodeSandbox) -> None:
    assert (
        printed(sandbox, "print(int(input()) * 2)", "print(input())", given="21\nüñ→\n")
        == "42\nüñ→\n"
    )
    assert printed(sandbox, "pass") == ""
    assert printed(sandbox, "import sys", "print(__name__, sys.argv, __file__)") is None
    assert printed(sandbox, "import sys", "print(__name__, sys.argv)") == "__main__ ['main.py']\n"


def test_program_with_nonzero_exit_or_crash_returns_no_output(sandbox: CodeSandbox) -> None:
    assert printed(sandbox, "print('a')", "exit()", "print('b')") == "a\n"
    assert printed(sandbox, "print('a')", "quit(1)") is None
    assert printed(sandbox, "print('a')", "1 / 0") is None
    assert printed(sandbox, "print('a'") is None
    assert printed(sandbox, "import os", "os.abort()") is None
    assert printed(sandbox, "print('\0')") is None
    assert printed(sandbox, "import os", "os.kill(os.getpid(), 9)") is None


def test_undecodable_program_output_is_replaced(sandbox: CodeSandbox) -> None:
    assert printed(sandbox, "import os", r"os.write(1, b'\xff\xfe')") == "��"
    assert printed(sandbox, "print('\ud800')") == "?\n"


def test_a_loop_ends_by_its_cpu_time_and_a_sleep_by_the_clock(sandbox: CodeSandbox) -> None:
    """Each by that limit alone: the other one would come after the test's own deadline."""
    assert printed(CodeSandbox(replace(LIMITS, wall_s=3600.0)), "while True: pass") is None
    assert (
        printed(CodeSandbox(replace(LIMITS, wall_s=0.5)), "import time", "time.sleep(3600)") is None
    )


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


def test_processes_are_limited_and_all_end(sandbox: CodeSandbox, others: set[int]) -> None:
    assert printed(sandbox, FORKS) in ("7\n", "8\n")  # bubblewrap may be one of them
    hasty = CodeSandbox(replace(LIMITS, wall_s=1.0))
    assert (
        printed(hasty, "import os", "while True:", "  try: os.fork()", "  except OSError: pass")
        is None
    )
    assert descendants(others) == []


def test_output_and_files_are_limited(sandbox: CodeSandbox) -> None:
    assert printed(sandbox, "print('x' * 1_000_000)") == "x" * 1_000_000 + "\n"
    assert printed(sandbox, "while True: print('x' * 1000)") is None
    write = "with open('a', 'wb') as file: file.write(bytes({}))"
    assert printed(sandbox, write.format(8 << 20), "print('written')") == "written\n"
    assert printed(sandbox, write.format((8 << 20) + 1), "print('written')") is None
    many = [
        "for number in range(1000):",
        "  with open(str(number), 'wb') as file: file.write(bytes(1 << 20))",
    ]
    assert printed(sandbox, *many) is None


def test_each_program_starts_in_empty_folder(sandbox: CodeSandbox) -> None:
    assert (
        printed(sandbox, "import os", "open('left', 'w').close()", "print(os.listdir())")
        == "['left']\n"
    )
    assert printed(sandbox, "import os", "print(os.getcwd(), os.listdir())") == "/tmp []\n"


def test_program_sees_no_environment_variable_or_open_descriptor(
    sandbox: CodeSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_KEY", "hunter2")
    fresh = CodeSandbox(LIMITS)
    # Python itself sets LC_CTYPE if the locale is C, and bubblewrap PWD.
    assert printed(fresh, "import os", "print(set(os.environ) - {'LC_CTYPE', 'PWD'})") == "set()\n"
    descriptors = [
        "import os",
        "def opened(i):",
        "  try: os.fstat(i)",
        "  except OSError: return False",
        "  return True",
    ]
    assert (
        printed(sandbox, *descriptors, "print([i for i in range(64) if opened(i)])")
        == "[0, 1, 2]\n"
    )


def test_program_cannot_write_system_files(sandbox: CodeSandbox) -> None:
    places = [
        f"{folder}/x"
        for folder in ("/usr", "/bin", os.path.dirname(sandbox.interpreter), sys.base_exec_prefix)
    ]
    tries = [
        f"for path in {places}:",
        "  try: open(path, 'w'); print(path)",
        "  except OSError: pass",
    ]
    assert printed(sandbox, *tries) == ""


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


@pytest.fixture
def others() -> set[int]:
    """The processes that other tests have started before."""
    return {one.pid for one in psutil.Process().children(recursive=True)}


def descendants(others: set[int]) -> list[psutil.Process]:
    """The processes that this one has started since, once those that are being ended are gone."""
    found = [one for one in psutil.Process().children(recursive=True) if one.pid not in others]
    return psutil.wait_procs([one for one in found if one.name() != "cat"], timeout=5)[1]


def test_orphaned_child_process_ends_with_program(sandbox: CodeSandbox, others: set[int]) -> None:
    assert printed(sandbox, ORPHAN) == "4\n"
    assert descendants(others) == []
    assert printed(sandbox, ORPHAN, "while True: pass") is None
    assert descendants(others) == []


STARTS = """
import sys
from lockstep.helpers.sandbox.sandbox import CodeSandbox, ProgramLimits
CodeSandbox(ProgramLimits(100, 100.0, 128)).capture_output("import time; time.sleep(100)", "")
"""


def test_a_program_ends_with_the_process_that_started_it() -> None:
    with subprocess.Popen([sys.executable, "-c", STARTS]) as starting:
        own = psutil.Process(starting.pid)
        while len(running := own.children(recursive=True)) < 3:  # two are bubblewrap's
            assert starting.poll() is None
            time.sleep(0.01)
        starting.send_signal(signal.SIGKILL)
    assert psutil.wait_procs(running, timeout=5)[1] == []


def test_without_bubblewrap_time_output_and_files_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    plain = CodeSandbox(LIMITS, is_isolated=False)
    plain.start()
    assert printed(plain, "print(int(input()) * 2)", given="21") == "42\n"
    assert printed(plain, "while True: pass") is None
    assert printed(plain, "while True: print('x' * 1000)") is None
    deep = (
        "import os",
        "for _ in range(3000):",
        "    os.mkdir('a')",
        "    os.chdir('a')",
        "print('deep')",
    )
    assert printed(plain, *deep) == "deep\n"
    assert plain.passes_test("def double(x): return 2 * x", "assert double(4) == 8")
    assert not plain.passes_test("def double(x): return 2 * x", "assert double(4) == 9")
    assert list(tmp_path.iterdir()) == []
    assert plain.describe_strength().startswith("without isolation: ")


def test_a_test_that_ends_its_process_has_not_passed(sandbox: CodeSandbox) -> None:
    assert not sandbox.passes_test("x = 1", "import os\nos._exit(0)")
    assert sandbox.passes_test("x = 1", "assert x == 1")


def test_test_code_sees_only_public_names_of_program(sandbox: CodeSandbox) -> None:
    program = (
        "from __future__ import annotations\nimport math\n_half = 0.5\ndef area(r): return "
        "math.pi * r * r"
    )
    assert sandbox.passes_test(program, "assert area(1) == math.pi and __name__ == 'solution'")
    assert not sandbox.passes_test(program, "assert _half == 0.5")
    assert not sandbox.passes_test(program, "assert area(1) == 3")
    assert not sandbox.passes_test(program, "while True: pass")
    assert sandbox.passes_test(
        "if __name__ == '__main__':\n    value = input()", "pass  # unfinished"
    )
    assert sandbox.passes_test(
        "value = 1", "def check(value):\n    assert value == 1\ncheck(value)"
    )


@pytest.mark.parametrize(
    "program",
    [
        "exit()",
        "import os\nos._exit(0)",
        "raise SystemExit",
        "import os\nos.execv('/usr/bin/true', ['true'])",
    ],
)
def test_a_program_that_ends_before_its_test_has_not_passed(
    sandbox: CodeSandbox, program: str
) -> None:
    assert not sandbox.passes_test(program, "pass")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"interpreter": "/absent/bin/python3"}, "a trial program failed: .*/absent/bin/python3"),
        # a Python without shared libraries starts, and then reaches the limit
        (
            {"limits": replace(LIMITS, memory_mb=1)},
            "a trial program failed: (.*shared lib|it reached a limit)",
        ),
        ({"limits": replace(LIMITS, wall_s=0.001)}, "a trial program failed: it reached a limit"),
    ],
)
def test_sandbox_start_fails_with_reason_if_setup_is_impossible(
    options: dict[str, Any], why: str
) -> None:
    with pytest.raises(SandboxError, match=rf"cannot run programs in a sandbox here \(.*{why}"):
        CodeSandbox(**{"limits": LIMITS, **options}).start()
