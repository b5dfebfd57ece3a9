"""Rewards for programs: which text is the program, what a test is, and what passing so many of them
is worth.
"""

from __future__ import annotations

import ctypes
import errno
import pickle
import re
import subprocess
import sys
from typing import Any

import pytest
from ordinary_user import in_fork
from scoring_server import serving

from lockstep.cli import main
from lockstep.core.types import Prompt
from lockstep.helpers.sandbox import seccomp
from lockstep.helpers.sandbox.sandbox import SandboxError
from lockstep.rewards import code_reward
from lockstep.rewards.build import build_reward
from lockstep.rewards.code_reward import CodeReward, extract_code_block
from lockstep.rewards.options import CodeSection, RewardSection
from lockstep.rewards.row_rules import find_fault_in_list
from lockstep.servers.json_server import ServerError

pytestmark = pytest.mark.usefixtures("sandboxes")

DOUBLE = "```python\nprint(int(input()) * 2)\n```"
TESTS = [
    {"stdin": "4\n", "stdout": "8\n"},
    {"stdin": "0", "stdout": "0"},
    {"stdin": "1", "stdout": "3"},
]


def section(**options: Any) -> CodeSection:
    return CodeSection(
        **{
            "tests": "tests",
            "cpu_s": 1,
            "wall_s": 10.0,
            "memory_mb": 128,
            "sandboxes": 2,
            **options,
        }
    )


def prompt(tests: Any) -> Prompt:
    return Prompt("rows.jsonl:7", "What?", (1, 2), {"tests": tests})


def score(response: str, tests: Any, **options: Any) -> float | None:
    [value] = CodeReward(section(**options))([prompt(tests)], [response], [""])
    return value


SEEN_IN_DOCSTRING = 'def f():\n    """Like\n\n    ```\n    f()\n    ```\n    """\n'


@pytest.mark.parametrize(
    ("response", "program"),
    [
        ("```python\na\n```", "a\n"),
        ("First\n```python\na\n```\nthen\n```py\nb\n```\ndone", "b\n"),
        ("```\na\n```", "a\n"),
        ("``` Python3 \r\na\r\n```\r\n", "a\r\n"),
        ("```python\na\n```\nIt prints\n```text\n8\n```", "a\n"),
        ("```python\na\n```\n```python\ncut o", "a\n"),
        ("```python\n```", ""),
        ('```python\ns = "```"\n```', 's = "```"\n'),
        ("print(1)", None),
        ("```bash\nls\n```", None),
        ("```python\nnever closed", None),
        ("```python\na\n```\nprints\n```\n1\n```", "a\n"),
        ("1. Do:\n\n   ```python\n   if a:\n       b\n   ```\n", "if a:\n    b\n"),
        ("- ```python\n  a\n  ```", "a\n"),
        ("-\t```python\n\ta\n\t\tb\n\t```", "a\n    b\n"),
        ("1. Do:\n   ```python\na\n   ```", "a\n"),
        ("~~~python\na\n```\n~~~", "a\n```\n"),
        ("````python\na\n```\n````", "a\n```\n"),
        ("> ```python\n> a\n>   b\n> ```\n", "a\n  b\n"),
        ("> 1. Do\n>    ```python\n>    a\n>    ```\n", "a\n"),
        (
            '```python\ndef f():\n    """Like\n\n    ```\n    f()\n    ```\n    """\n```\n',
            SEEN_IN_DOCSTRING,
        ),
        ('```python title="a.py"\na\n```', "a\n"),
        ("```{.python .numberLines}\na\n```", "a\n"),
    ],
)
def test_program_is_extracted_from_last_closed_python_code_block(
    response: str, program: str | None
) -> None:
    assert extract_code_block(response) == program


@pytest.mark.parametrize(
    ("tests", "wrong"),
    [
        ([*TESTS, "assert f(1) == 2"], None),
        ([{"stdout": ""}], None),
        (None, "has null in the field 'tests'"),
        ("assert f(1) == 2", "has text in the field 'tests', which should be list"),
        ([], "field 'tests' is an empty list"),
        (
            [*TESTS, {"stdin": "4"}],
            "field 'tests': test number 4 is neither Python (text) nor",
        ),
        ([{"stdin": "4", "stdout": "8", "timeout": 1}], "test number 1 is neither"),
        ([7], "test number 1 is neither"),
        (["assert f(1) = 2"], "test number 1 is invalid Python ("),
    ],
)
def test_malformed_code_tests_of_row_are_reported_with_their_number(
    tests: Any, wrong: str | None
) -> None:
    said = find_fault_in_list({"tests": tests}, "tests", "test", code_reward.describe_test_fault)
    assert said is None if wrong is None else said is not None and wrong in said


def test_code_reward_is_share_of_passed_tests_unless_all_or_nothing() -> None:
    assert score(DOUBLE, TESTS) == pytest.approx(2 / 3)
    assert score(DOUBLE, TESTS, all_or_nothing=True) == 0.0
    assert score(DOUBLE, TESTS[:2], all_or_nothing=True) == 1.0
    assert score("I do not know.", TESTS) == 0.0


def test_a_program_in_a_thought_is_not_the_answer() -> None:
    assert score(f"<think>\n{DOUBLE}\n</think>\nI do not know.", TESTS) == 0.0
    assert score("<think>x</think>print(int(input()) * 2)", TESTS[:2], program="text") == 1.0


def test_code_reward_runs_stdin_tests_and_assert_tests() -> None:
    both = (
        "```python\ndef double(x):\n  return x * 2\nif __name__ == '__main__':\n  "
        "print(double(int(input())))\n```"
    )
    assert score(both, [*TESTS[:2], "assert double(4) == 8", "assert double('a') == 'aa'"]) == 1.0


def test_program_text_option_runs_full_response_as_program() -> None:
    assert score("print(8)", TESTS[:1], program="text") == 1.0
    assert score(" print(8)", TESTS[:1], program="text") == 1.0
    assert score("print(8)", TESTS[:1]) == 0.0


@pytest.mark.parametrize(
    ("printed", "expected", "same"),
    [
        ("'8'", "8", True),
        ("'a \\r\\nb'", "a\nb", True),
        ("'ä→'", "ä→", True),
        ("''", "", True),
        ("''", "8", False),
        ("' 8'", "8", False),
        ("'a\\n\\nb'", "a\nb", False),
        ("'8.0'", "8", False),
    ],
)
def test_program_output_comparison_ignores_only_trailing_whitespace(
    printed: str, expected: str, same: bool
) -> None:
    assert score(f"print({printed})", [{"stdout": expected}], program="text") == float(same)


@pytest.mark.parametrize(
    ("option", "program"),
    [
        ("cpu_s", "import time\nwhile time.process_time() < 1.2: pass"),
        ("memory_mb", "held = bytearray(160 << 20)"),
        ("wall_s", "import time\ntime.sleep(1)"),
    ],
)
def test_program_that_exceeds_cpu_wall_or_memory_limit_fails(option: str, program: str) -> None:
    enough = {"cpu_s": 4, "memory_mb": 512, "wall_s": 20.0}
    tight = {"cpu_s": 1, "memory_mb": 128, "wall_s": 0.5}
    tests = [{"stdout": ""}]
    assert score(program, tests, program="text", **enough) == 1.0
    assert score(program, tests, program="text", **{**enough, option: tight[option]}) == 0.0


def test_isolation_none_lets_program_see_host_files() -> None:
    reaches, tests = "import os\nprint(os.path.exists('/etc/passwd'))", [{"stdout": "True"}]
    assert score(reaches, tests, program="text") == 0.0
    assert score(reaches, tests, program="text", isolation="none") == 1.0


def test_code_reward_can_be_pickled() -> None:
    reward = CodeReward(section())
    again = pickle.loads(pickle.dumps(reward))
    assert again == reward
    assert again([prompt(TESTS[:2])], [DOUBLE], [""]) == [1.0]


REFUSED = (
    "reward.code: cannot run programs in a sandbox here ({}); see docs/guides/rewards.md; "
    "reward.code.isolation=none runs them with your user's permissions"
)


def build_text(isolation: str) -> str:
    """What the user reads of a code reward that is built."""
    lines: list[str] = []
    try:
        build_reward(RewardSection(type="code", code=section(isolation=isolation)), lines.append)
    except SandboxError as error:
        return str(error)
    return lines[0]


def forbid_namespaces() -> None:
    """Puts this process under a profile of system calls like that of a plain container."""
    control, library = ctypes.CDLL(None).prctl, ctypes.CDLL("libseccomp.so.2")
    assert control(38, 1, 0, 0, 0) == 0
    library.seccomp_init.restype = ctypes.c_void_p
    rules = ctypes.c_void_p(library.seccomp_init(0x7FFF0000))
    refuse = 0x00050000 | errno.EPERM
    for name in (b"unshare", b"setns", b"mount"):
        assert (
            library.seccomp_rule_add_array(
                rules, refuse, library.seccomp_syscall_resolve_name(name), 0, None
            )
            == 0
        )
    clone = library.seccomp_syscall_resolve_name(b"clone")
    for flag in (0x00020000, 0x10000000):  # namespaces of mounts and of users
        comparison = seccomp._ArgumentComparison(0, 7, flag, flag)
        assert (
            library.seccomp_rule_add_array(rules, refuse, clone, 1, ctypes.byref(comparison)) == 0
        )
    assert library.seccomp_load(rules) == 0


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_code_reward_is_refused_if_namespaces_are_forbidden_unless_isolation_is_none() -> None:
    """In a fork under such a profile; without isolation programs run there."""

    def run() -> list[str]:
        forbid_namespaces()
        return [build_text("bubblewrap"), build_text("none")]

    refused, opened = in_fork(run)
    why = re.fullmatch(re.escape(REFUSED).replace(re.escape("{}"), "(.*)"), refused)
    assert why is not None
    assert "bubblewrap: bwrap: " in why[1]
    assert "ermi" in why[1]
    assert opened == (
        "reward.code: programs run without isolation: they can access the network and "
        "everything you can access"
    )


@pytest.mark.parametrize("missing", ["bubblewrap", "libseccomp"])
def test_missing_sandbox_package_is_named_with_install_command(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if missing == "bubblewrap":
        monkeypatch.setenv("PATH", "")
    else:
        monkeypatch.setattr(seccomp, "_LIBRARY", "absent.so")
        seccomp.build_filter.cache_clear()
    assert (
        f"({missing} is not installed; apt-get install bubblewrap libseccomp2 installs it"
        in build_text("bubblewrap")
    )


def fusion(path: str, body: dict[str, Any]) -> Any:
    """A server of SandboxFusion's protocol, without isolation."""
    ran = subprocess.run(
        [sys.executable, "-c", body["code"]],
        input=body.get("stdin"),
        capture_output=True,
        text=True,
        check=False,
    )
    ended = {
        "status": "Finished" if ran.returncode == 0 else "Error",
        "return_code": ran.returncode,
    }
    whole = {
        "status": "Success",
        "message": "",
        "compile_result": None,
        "executor_pod_name": None,
        "files": {},
    }
    return {
        **whole,
        "run_result": {**ended, "execution_time": 0.1, "stdout": ran.stdout, "stderr": ran.stderr},
    }


def test_code_reward_runs_programs_on_sandbox_server() -> None:
    with serving(fusion) as url:
        reward = build_reward(RewardSection(type="code", code=section(url=f"{url}/run_code")))
        asked = [prompt(TESTS), prompt(TESTS), prompt(["assert 1", "import os\nos._exit(0)"])]
        assert reward(asked, [DOUBLE, "no program", "```\npass\n```"], [""] * 3) == [
            pytest.approx(2 / 3),
            0.0,
            0.5,
        ]


def test_sandbox_server_failure_raises_server_error() -> None:
    with serving(lambda path, body: {"status": "SandboxError", "message": "no room"}) as url:
        reward = build_reward(RewardSection(type="code", code=section(url=f"{url}/run_code")))
        with pytest.raises(ServerError, match=r"it could not run a program \(no room\)"):
            reward([prompt(TESTS[:1])], [DOUBLE], [""])


def test_isolation_none_is_rejected_with_sandbox_server_url() -> None:
    with pytest.raises(ValueError, match="isolation: none and url exclude each other"):
        section(url="http://localhost:8080/run_code", isolation="none")


def test_plan_exits_with_input_error_if_code_sandbox_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    words = [
        "plan",
        "grpo_gsm8k",
        "reward={type: code, code: {tests: tests}}",
        "--gpus",
        "1",
        "--memory",
        "80GB",
    ]
    assert main(words) == 2
    assert (
        "reward.code: cannot run programs in a sandbox here (bubblewrap is not"
        in capsys.readouterr().err
    )
