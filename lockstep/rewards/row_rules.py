"""Requirements of a recipe's reward on rows: valid instructions and tests, a known verifier, a right answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import assert_never

from lockstep.data.rows import Row
from lockstep.data.selection import Rule
from lockstep.data.templates import complaint, read_field
from lockstep.rewards import code_reward, instruction_reward
from lockstep.rewards.build import SET_UP
from lockstep.rewards.math_reward import READING, MathReward
from lockstep.rewards.options import RewardSection, SingleReward, Verifier
from lockstep.types import Prompt

JUDGE, UNREWARDED = "judge", "none"
"""Words of a row in place of a verifier: a judge rewards it, or nothing does."""

NO_ANSWERS = Rule(lambda row: None, "no reward reads an answer", lambda row: False)
"""The rule for rows whose responses are not compared with a right answer."""
_UNREAD = """data.answer='""' asks for none, where the function or the server reads none"""


def find_unverified(section: RewardSection | None, prompts: Sequence[Prompt]) -> list[bool]:
    """Marks the prompts that are left to a judge, since no program can score their responses."""
    if section is None or section.verifier is None:
        return [section is None] * len(prompts)
    return [read_field(prompt.row, section.verifier) == JUDGE for prompt in prompts]


def rule_of(section: SingleReward | None, judge: bool = False, option: str = "reward") -> Rule:
    """The requirements of a recipe's reward on rows.

    Args:
        section: The reward section; None: there is no reward.
        judge: True if a judge rewards the rows that say `judge`.
        option: Key of the section in the recipe, for messages.
    """
    if section is None:
        return NO_ANSWERS
    if isinstance(section, RewardSection) and section.parts is not None:
        parts = section.parts.items()
        return _rule_of_sum([rule_of(part, judge, f"{option}.parts.{name}") for name, part in parts])
    fields = (
        section.verifier,
        section.instructions and section.instructions.field,
        section.code and section.code.tests,
    )
    unread = "" if section.function is None and section.server is None else _UNREAD
    key = (section.type, section.verifiers, fields, judge, instruction_reward.KNOWN, section.marker, READING)
    unreadable = partial(_explain_unread, section, option)
    match section.type:
        case "by_row":
            assert section.verifier is not None, "the recipe names the field"
            fault = _FaultByRow(section.verifier, section, judge)
            return Rule(fault, key, partial(_reads_answer, section), unread, unreadable)
        case "math" | "instructions" | "code" | "python" | "server" | "judge":
            fault = partial(_fault, section, section.type)
            return Rule(fault, key, partial(_reads_answer, section), unread, unreadable)
        case "sum":
            raise AssertionError("a sum has parts")
        case _:
            assert_never(section.type)


def _rule_of_sum(rules: Sequence[Rule]) -> Rule:
    """The requirements of all parts."""
    return Rule(
        lambda row: next((fault for rule in rules if (fault := rule.fault(row)) is not None), None),
        tuple(rule.key for rule in rules),
        lambda row: any(rule.reads_answer(row) for rule in rules),
        next((rule.unread for rule in rules if rule.unread), ""),
        lambda row, answer: next(
            (fault for rule in rules if (fault := rule.answer_fault(row, answer)) is not None), None
        ),
    )


def _reads_answer(section: SingleReward, row: Row) -> bool:
    """True if a row's verifier reads the right answer."""
    named = section.type if section.verifier is None else read_field(row, section.verifier)
    return any(name == named and _compares(name) for name in section.verifiers)


def _explain_unread(section: SingleReward, option: str, row: Row, answer: str) -> str | None:
    """Says that a row's right answer cannot be read whole; None if it can, or need not be read."""
    named = section.type if section.verifier is None else read_field(row, section.verifier)
    return MathReward(section.marker, option).explain_unread(answer) if named == "math" else None


def _compares(name: Verifier) -> bool:
    """True if a verifier reads the right answer."""
    match name:
        case "math" | "python" | "server":
            return True
        case "instructions" | "code" | "judge":
            return False
        case _:
            assert_never(name)


def _fault(section: SingleReward, name: Verifier, row: Row) -> str | None:
    """Returns what a verifier finds wrong with a row; None if nothing is."""
    match name:
        case "math" | "python" | "server" | "judge":
            return None
        case "instructions":
            assert section.instructions is not None, SET_UP
            return instruction_reward.fault(row, section.instructions.field)
        case "code":
            assert section.code is not None, SET_UP
            return code_reward.fault(row, section.code.tests)
        case _:
            assert_never(name)


@dataclass(frozen=True)
class _FaultByRow:
    """Checks a row that names its own verifier; the result is what is wrong with it, or None.

    Attributes:
        field: Field of the row with the name.
        section: Configures the verifiers.
        judge: True if a row may name the judge.
    """

    field: str
    section: SingleReward
    judge: bool

    def __call__(self, row: Row) -> str | None:
        named = read_field(row, self.field)
        for name in self.section.verifiers:
            if named == name:
                return _fault(self.section, name, row)
        others = (UNREWARDED, JUDGE) if self.judge else (UNREWARDED,)
        if named in others:
            return None
        known = ", ".join((*self.section.verifiers, *others))
        return complaint(row, {self.field: "text"}) or (
            f"names in the field {self.field!r} the verifier {named!r}; this recipe has: {known}"
        )
