"""Faults of reward functions that may pass: of connections, and of the process that is killed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lockstep.core import exit_codes
from lockstep.core.types import Prompt
from lockstep.rewards.base import RewardError, RewardLost
from lockstep.rewards.python_reward import PythonReward
from lockstep.system.fault_policy import POLICY

PROMPTS = [Prompt(f"rows.jsonl:{n}", "", (0,), {}) for n in range(3)]
COUNTING = """
import os, pathlib

def count(name):
    path = pathlib.Path(name)
    path.write_text(path.read_text() + "x" if path.exists() else "x")
    return len(path.read_text())
"""


@pytest.fixture
def quick(in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(POLICY, "reward", replace(POLICY["reward"], waits_s=(0.0,)))
    return in_tmp


def score(body: str) -> tuple[list[float | None], list[str]]:
    """Scores three responses by a function with this body; returns the rewards, and what was
    told.
    """
    Path("mine.py").write_text(
        f"{COUNTING}\ndef f(prompt, response, answer, row):\n    {body}\n    return "
        "float(response)\n"
    )
    told: list[str] = []
    return PythonReward("mine.py:f", 60.0, note=told.append)(
        PROMPTS, ["0", "1", "2"], [""] * 3
    ), told


@pytest.mark.parametrize(
    "raises",
    [
        "ConnectionResetError('gone')",
        "TimeoutError('late')",
        "OSError('of a library without a number')",
        "RuntimeError('of a library') from OSError(5, 'Input/output error')",
    ],
)
def test_reward_function_that_raises_connection_error_is_retried(quick: Path, raises: str) -> None:
    rewards, told = score(f"if response == '1' and count('n') < 3: raise {raises}")
    assert rewards == [0.0, 1.0, 2.0]
    assert [line.split("; ")[-1] for line in told] == [
        f"calling it again ({n} of 3 times)" for n in (1, 2)
    ]
    assert told[0].startswith("rows.jsonl:1: reward.function mine.py:f raised ")


def test_reward_function_that_keeps_losing_connection_raises_resumable_error(quick: Path) -> None:
    with pytest.raises(
        RewardLost,
        match=(
            r"rows\.jsonl:1: .*raised ConnectionError: gone .*, 4 times in a row; the same "
            r"command resumes"
        ),
    ) as lost:
        score("if response == '1': raise ConnectionError('gone')")
    assert lost.value.exit_code == exit_codes.CRASH


ITS_OWN_CAUSE = "(lambda error: error.__setattr__('__cause__', error) or error)(ValueError('a'))"


@pytest.mark.parametrize(
    "raises", ["KeyError('a')", "FileNotFoundError(2, 'No such file', 'a')", ITS_OWN_CAUSE]
)
def test_reward_function_programming_error_is_not_retried(quick: Path, raises: str) -> None:
    with pytest.raises(RewardError, match=r"rows\.jsonl:1: .* raised ") as wrong:
        score(f"if response == '1' and count('n') < 2: raise {raises}")
    assert wrong.value.exit_code == exit_codes.INPUT


@pytest.mark.parametrize("ends", ["os.kill(os.getpid(), 9)", "os.closerange(3, 4096)"])
def test_reward_process_that_dies_is_restarted(quick: Path, ends: str) -> None:
    rewards, told = score(f"if response == '1' and count('n') < 2: {ends}")
    assert rewards == [0.0, 1.0, 2.0]
    assert [line.split("; ")[-1] for line in told] == ["starting it again (1 of 1 times)"]


def test_reward_process_killed_twice_raises_error_that_names_the_row(quick: Path) -> None:
    with pytest.raises(
        RewardLost,
        match=r"rows\.jsonl:1: .* crashed its process \(killed by SIGKILL\), 2 times in a row; ",
    ):
        score("if response == '1': os.kill(os.getpid(), 9)")
