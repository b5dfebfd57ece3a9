"""Answers of mathematics: read whole or refused, where they stand in a text, in time linear in
it.
"""

import gc
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from row_files import read_rows

from lockstep.core.types import Prompt
from lockstep.rewards.math_answer import find_answer, find_boxes, find_marked, find_right_answer
from lockstep.rewards.math_reward import MathReward
from lockstep.rewards.options import RewardSection
from lockstep.rewards.row_rules import build_row_rule

PAIRS = read_rows(Path(__file__).parent / "math_pairs.jsonl")
PROMPT = Prompt("rows.jsonl:7", "What?", (1,), {})


def test_math_reward_matches_expected_verdict_for_every_listed_pair() -> None:
    wrong = [
        pair
        for pair in PAIRS
        if score(pair["answer"], pair["response"], pair["marker"]) != pair["right"]
    ]
    assert wrong == []


def score(
    answer: str, response: str, marker: str | None = None, prompt: Prompt = PROMPT
) -> float | None:
    [value] = MathReward(marker)([prompt], [response], [answer])
    return value


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "many",
        "about 12",
        "10-15",
        "3 hours 20 minutes",
        "The answer is $5$.",
        "18 out of 24",
        "5 if x is odd",
        "1, 2, …, 10",
        "f''",
        "x_",
        "{1",
        "5+",
        "6:4:2",
        r"10:30 \text{ a.m.}",
        "1.5 million",
        r"3.2\text{ billion}",
        r"\boxed{4",
        r"\boxed{}",
    ],
)
def test_reference_math_answer_that_cannot_be_fully_parsed_is_rejected(
    answer: str,
) -> None:
    rule = build_row_rule(RewardSection(type="math"))
    assert "cannot read the right answer" in str(rule.answer_fault({}, answer))
    assert rule.answer_fault({}, "5x") is None


def test_only_rows_verified_by_math_require_a_parsable_answer() -> None:
    rule = build_row_rule(
        RewardSection(type="by_row", verifier="by", function="mine.py:right", pass_score=1.0)
    )
    assert rule.answer_fault({"by": "python"}, "many") is None
    assert "reward.marker" in str(rule.answer_fault({"by": "math"}, "many"))


def test_math_reward_ignores_answer_in_thought_opened_by_prompt() -> None:
    opened = Prompt("rows.jsonl:7", "What?<think>\n", (1,), {})
    assert score("4", r"It is \boxed{4}", prompt=opened) == 0.0
    assert score("4", "hm \\boxed{5}\n</think>\n\\boxed{4}", prompt=opened) == 1.0


def test_math_reward_gives_no_verdict_for_huge_power_tower() -> None:
    assert score("4", r"\boxed{9^{9^{9^{9}}}}") is None


HOSTILE: dict[str, Callable[[int], str]] = {
    "boxes": lambda n: r"\boxed{1}, " * n,
    "boxes that are not closed": lambda n: r"\boxed{" * n,
    "boxes without braces": lambda n: r"\boxed " * n,
    "opening braces": lambda n: r"\boxed" + "{" * n,
    "commas": lambda n: "1," * n,
    "newlines": lambda n: "The answer is" + "\n" * n,
    "spaces": lambda n: "18" + " " * n + "x",
    "dollars": lambda n: "$ 1 " * n,
    "answers": lambda n: "answer is " * n,
    "markers": lambda n: "#### " * n,
    "hashes": lambda n: "#" * n,
    "brackets": lambda n: "(1" * n,
    "digits": lambda n: "1" * n,
    "signs": lambda n: "-" * n + "1",
    "delimiters": lambda n: r"\( \[ " * n,
    "equal signs": lambda n: "1 = " * n,
    "thousands": lambda n: "1" + ",000" * n,
    "roots": lambda n: "√(" * n,
    "dozens": lambda n: "2 dozen and " * n,
    "spaces before a word": lambda n: "2" + " " * n + "dozen",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_time_to_find_math_answers_grows_linearly(name: str) -> None:
    def seconds(n: int) -> float:
        text = HOSTILE[name](n)
        gc.disable()  # a collection walks through all that other tests have left
        start = time.process_time()
        for find in (find_answer, find_marked, find_boxes, MathReward("####").extract_answer):
            find(text)
        find_right_answer(text, True)
        spent = time.process_time() - start
        gc.enable()
        return spent

    # four times the text; again, since other work on the machine may slow one measurement
    assert any(seconds(40_000) < 8 * seconds(10_000) + 0.1 for _ in range(3))
