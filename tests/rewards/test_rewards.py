"""Rewards: what counts as right, what is no verdict, and what a user's function may do."""

import gc
from pathlib import Path
from typing import Any

import psutil
import pytest

from lockstep.core.types import Prompt
from lockstep.data.jsonl import JsonlIndex
from lockstep.helpers.process import HelperProcess
from lockstep.rewards import math_verifier
from lockstep.rewards.base import Reward, RewardError
from lockstep.rewards.build import build_reward
from lockstep.rewards.code_reward import CodeReward
from lockstep.rewards.combined_rewards import ByRow
from lockstep.rewards.instruction_reward import InstructionReward
from lockstep.rewards.math_reward import MathReward
from lockstep.rewards.options import CodeSection, InstructionSection, RewardSection
from lockstep.rewards.python_reward import PythonReward
from lockstep.rollouts.evaluation import GradingRule, grading

PROMPT = Prompt("rows.jsonl:7", "What?", (1, 2), {"answer": "18", "level": 3})


def score(reward: Reward, response: str, answer: str = "#### 18") -> float | None:
    [value] = reward([PROMPT], [response], [answer])
    return value


def test_every_answer_of_gsm8k_is_readable_and_equals_itself(assets: Path) -> None:
    index = JsonlIndex(assets / "data/gsm8k/test.jsonl")
    answers = [row["answer"] for row in index.read_rows(range(len(index)))]
    assert len(answers) == 1319
    assert MathReward("####")([PROMPT] * 1319, answers, answers) == [1.0] * 1319


def test_math_answer_that_times_out_gives_no_verdict_and_next_is_scored() -> None:
    endless = "#### $100000000!$"  # by itself it would take hours; the limit is 3 s of CPU time
    for _ in range(1000):  # remembered: otherwise this would be most of an hour
        assert score(MathReward("####"), endless) is None
    assert score(MathReward("####"), "#### 18") == 1.0


def test_killed_math_verifier_process_is_restarted() -> None:
    child = HelperProcess(math_verifier.__name__)
    assert math_verifier.ask_verifier(child, "5", "5") is True
    assert child._running is not None
    child._running.process.kill()
    child._running.process.wait()
    assert math_verifier.ask_verifier(child, "5", "6") is False


FUNCTIONS = """
from __future__ import annotations
from dataclasses import dataclass

@dataclass
class Weights:
    level: float = 0.5

def graded(prompt, response, answer, row):
    return len(response) + Weights().level * row["level"] if answer == "18" else None

def right(prompt, response, answer, row):
    return response == answer

def broken(prompt, response, answer, row):
    return row["absent"]

def word(prompt, response, answer, row):
    return "good"

def endless(prompt, response, answer, row):
    return float("nan")

def narrow(prompt, response):
    return 1.0

import sys

asked = 0

def counting(prompt, response, answer, row):
    global asked
    asked += 1
    print("asked", asked)
    print("said", asked, file=sys.stderr)
    return asked

def hanging(prompt, response, answer, row):
    while response == "long":
        pass
    return 1.0

def crashing(prompt, response, answer, row):
    import os
    os.kill(os.getpid(), 9)

constant = 3
"""


@pytest.fixture
def functions(in_tmp: Path) -> Path:
    (in_tmp / "mine.py").write_text(FUNCTIONS)
    return in_tmp


def mine(name: str, timeout_s: float = 60.0) -> PythonReward:
    return PythonReward(f"mine.py:{name}", timeout_s)


@pytest.mark.usefixtures("functions")
def test_reward_function_gets_response_answer_and_row() -> None:
    reward = build_reward(RewardSection(type="python", function="mine.py:graded"))
    assert reward([PROMPT, PROMPT], ["four", "four"], ["18", "19"]) == [5.5, None]


@pytest.mark.usefixtures("functions")
def test_reward_function_keeps_module_state_and_its_output_is_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    reward = mine("counting")
    assert [score(reward, "x"), *reward([PROMPT] * 2, ["y", "z"], ["", ""])] == [1.0, 2.0, 3.0]
    assert capsys.readouterr().out == "asked 1\nsaid 1\nasked 2\nsaid 2\nasked 3\nsaid 3\n"


@pytest.mark.usefixtures("functions")
def test_hanging_reward_function_is_killed_and_error_names_the_row() -> None:
    before, reward = set(psutil.Process().children()), mine("hanging", timeout_s=0.3)
    with pytest.raises(
        RewardError,
        match=r"rows\.jsonl:7: .* timed out after 0\.3 s; .*timeout_s",
    ):
        reward([PROMPT] * 2, ["short", "long"], ["", ""])
    assert set(psutil.Process().children()) <= before
    assert score(reward, "short") == 1.0


@pytest.mark.usefixtures("functions")
def test_reward_process_ends_when_reward_is_deleted() -> None:
    before, reward = set(psutil.Process().children()), mine("right")
    [process] = set(psutil.Process().children()) - before
    del reward
    gc.collect()
    assert not process.is_running()


CODE, INSTRUCTIONS = CodeSection(tests="tests"), InstructionSection(field="asked")
MIXED = RewardSection(
    type="by_row", verifier="by", marker="####", code=CODE, instructions=INSTRUCTIONS
)


def row(by: Any, **fields: Any) -> Prompt:
    return Prompt("rows.jsonl:7", "What?", (1, 2), {"by": by, **fields})


@pytest.mark.usefixtures("sandboxes", "functions")
def test_reward_type_option_selects_reward_class() -> None:
    assert build_reward(RewardSection(type="math", marker="####")) == MathReward("####")
    assert build_reward(
        RewardSection(type="instructions", instructions=INSTRUCTIONS)
    ) == InstructionReward(INSTRUCTIONS)
    assert build_reward(RewardSection(type="code", code=CODE)) == CodeReward(CODE)
    by_row = build_reward(
        RewardSection(type="by_row", verifier="by", function="mine.py:right", timeout_s=5.0)
    )
    assert by_row == ByRow("by", {"math": MathReward(None), "python": mine("right", 5.0)})


@pytest.mark.usefixtures("sandboxes")
def test_each_row_is_rewarded_by_the_verifier_that_it_names() -> None:
    reward = build_reward(MIXED)
    assert isinstance(reward, ByRow)
    rows = [
        row("judge"),
        row("instructions", asked=[{"id": "lowercase"}, {"id": "no_commas"}]),
        row("math"),
        row("none"),
        row("code", tests=["assert f(1) == 2"]),
        row("math"),
    ]
    responses = ["Good", "a, b", "#### 18", "x", "```\ndef f(x): return x + 1\n```", "#### 17"]
    assert reward(rows, responses, ["", "", "18", "", "", "18"]) == [None, 0.5, 1.0, None, 1.0, 0.0]
    assert reward([], [], []) == []


@pytest.mark.parametrize(
    ("options", "graded"),
    [
        ({"type": "math"}, GradingRule(1.0, majority=True, graded=False)),
        ({"type": "code", "code": CODE}, GradingRule(1.0, majority=False, graded=True)),
        (
            {"type": "code", "code": CODE.model_copy(update={"all_or_nothing": True})},
            GradingRule(1.0, False, False),
        ),
        ({"type": "instructions", "instructions": INSTRUCTIONS}, GradingRule(1.0, False, True)),
        (
            {
                "type": "instructions",
                "instructions": INSTRUCTIONS.model_copy(update={"all_or_nothing": True}),
            },
            GradingRule(1.0, False, False),
        ),
        ({"type": "by_row", "verifier": "by"}, GradingRule(1.0, False, True)),
        ({"type": "by_row", "verifier": "by", "function": "a:b"}, GradingRule(None, False, True)),
        (
            {"type": "by_row", "verifier": "by", "function": "a:b", "pass_score": 0.5},
            GradingRule(0.5, False, True),
        ),
    ],
)
def test_grading_rule_follows_from_reward_type_and_options(
    options: dict[str, Any], graded: GradingRule
) -> None:
    assert grading(RewardSection(**options)) == graded
