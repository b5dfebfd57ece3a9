"""Instructions that a program can check: what each kind means, and what is said of one that is
none.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import pytest

from lockstep.core.types import Prompt
from lockstep.rewards import instruction_reward
from lockstep.rewards.instruction_reward import AnyInstruction, InstructionReward
from lockstep.rewards.options import InstructionSection

GUIDE = Path(__file__).parents[2] / "docs/guides/rewards.md"


def score(response: str, *asked: dict[str, Any], all_or_nothing: bool = False) -> float | None:
    prompt = Prompt("rows.jsonl:7", "What?", (1, 2), {"asked": list(asked)})
    section = InstructionSection(field="asked", all_or_nothing=all_or_nothing)
    [value] = InstructionReward(section)([prompt], [response], [""])
    return value


CASES: list[tuple[str, dict[str, Any], list[str], list[str]]] = [
    (
        "words",
        {"at_least": 3},
        ["a b c", "It's well-known, yes", "один два три"],
        ["a b", "", "... - !"],
    ),
    ("words", {"at_most": 2}, ["a b", "", "don’t stop"], ["a b c"]),
    ("words", {"at_least": 2, "at_most": 2}, ["a b"], ["a", "a b c"]),
    (
        "sentences",
        {"at_least": 2, "at_most": 2},
        ["A b. C!", "A? B", "“A.” B…", "你好。再见！", "3.14 is it. Yes"],
        ["A", "A. B. C.", "3.14"],
    ),
    (
        "paragraphs",
        {"at_least": 2, "at_most": 2},
        ["a\n\nb", "a\nb\n \n\nc\n\n", "\n\na\n\nb"],
        ["a\nb", "a\n\nb\n\nc", ""],
    ),
    (
        "bullets",
        {"at_least": 2, "at_most": 2},
        ["* a\n- b", "Here:\n  • a\n  * b\nend"],
        ["* a", "*a\n*b", "- a\n- b\n- c", "-\n-"],
    ),
    (
        "keywords",
        {"words": ["red", "deep blue"], "at_least": 1},
        ["Red and deep blue.", "deep blue-red"],
        ["red", "reddish, deep blue", "deep\nblue"],
    ),
    ("keywords", {"words": ["red", "blue"], "at_most": 0}, ["reddish", ""], ["Red", "a blue one"]),
    (
        "keywords",
        {"words": ["red"], "at_least": 2, "at_most": 2},
        ["red Red"],
        ["red", "red red red"],
    ),
    ("keywords", {"words": ["C++"], "at_least": 1}, ["I like C++."], ["I like C."]),
    ("starts_with", {"text": "Dear all"}, ["Dear all,", "  dear ALL!"], ["Oh dear all", "Dear"]),
    (
        "ends_with",
        {"text": "Any questions?"},
        ["Yes. Any questions?\n", "any questions?"],
        ["Any questions? No."],
    ),
    ("one_of", {"texts": ["Yes", "No"]}, ["yes", " No\n"], ["Yes.", "maybe", ""]),
    ("uppercase", {}, ["A B 1!", "ÄÖ"], ["A b", "1", ""]),
    ("lowercase", {}, ["a b 1!", "straße"], ["A b", "1", ""]),
    ("no_commas", {}, ["a b", ""], ["a, b", "1,000", "好，"]),
    (
        "json",
        {},
        ['{"a": [1]}', " [1]\n", '```json\n{"a": 1}\n```', "```\n[1]\n```"],
        ["{a: 1}", "", 'So: {"a": 1}', "```json\n{\n```", "[" * 100_000],
    ),
]


@pytest.mark.parametrize(
    ("asked", "response", "right"),
    [
        (
            {"id": "words", "at_most": 5},
            "<think>\nI say hello to them and no more.\n</think>\n\nHello there.",
            1.0,
        ),
        ({"id": "lowercase"}, "<think>\nOK.\n</think>\n\nhello there.", 1.0),
        (
            {"id": "keywords", "words": ["snow"], "at_most": 0},
            "I must not say snow.\n</think>\n\nIt is white.",
            1.0,
        ),
        ({"id": "starts_with", "text": "Dear"}, "[THINK]To whom?[/THINK]Dear all", 1.0),
        ({"id": "words", "at_least": 3}, "<think>I have not come to an end", 0.0),
    ],
)
def test_instructions_are_about_the_answer_and_not_about_the_thought(
    asked: dict[str, Any], response: str, right: float
) -> None:
    assert score(response, asked) == right


@pytest.mark.parametrize(("name", "arguments", "followed", "not_followed"), CASES)
def test_instruction_kind_accepts_and_rejects_its_example_responses(
    name: str, arguments: dict[str, Any], followed: list[str], not_followed: list[str]
) -> None:
    asked = {"id": name, **arguments}
    assert instruction_reward.describe_instruction_fault(asked) is None
    assert [response for response in followed if score(response, asked) != 1.0] == []
    assert [response for response in not_followed if score(response, asked) != 0.0] == []


def test_every_instruction_kind_has_test_cases_and_its_arguments_in_guide() -> None:
    kinds = {
        name: kind
        for kind in get_args(AnyInstruction)
        for name in get_args(kind.model_fields["id"].annotation)
    }
    assert {name for name, *_ in CASES} == kinds.keys()
    rows = dict(re.findall(r"^\| `(\w+)` \|([^|]*)\|", GUIDE.read_text(), re.MULTILINE))
    assert {name: {"id", *re.findall(r"`(\w+)`", rows[name])} for name in kinds} == {
        name: kind.model_fields.keys() for name, kind in kinds.items()
    }


def test_instruction_reward_is_share_followed_unless_all_or_nothing() -> None:
    asked = [
        {"id": "no_commas"},
        {"id": "lowercase"},
        {"id": "words", "at_least": 2},
        {"id": "json"},
    ]
    assert score("a b", *asked) == 0.75
    assert score("a b", *asked, all_or_nothing=True) == 0.0
    assert score("a b", *asked[:3], all_or_nothing=True) == 1.0
