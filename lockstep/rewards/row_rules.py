"""Requirements of a recipe's reward on rows: valid instructions and tests, a known verifier, a right answer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import assert_never

from lockstep.core.types import Prompt
from lockstep.data.rows import Row
from lockstep.data.selection import Rule
from lockstep.data.templates import complaint, read_field
from lockstep.rewards import code_reward, instruction_reward
from lockstep.rewards.build import SET_UP
from lockstep.rewards.math_reward import READING, MathReward
from lockstep.rewards.options import RewardSection, SingleReward, Verifier

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
    return Rule(
        partial(_find_fault, section, judge),
        key,
        partial(_reads_answer, section),
        unread,
        partial(_explain_unread, section, option),
    )


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


def _name_verifier(section: SingleReward, row: Row) -> object:
    """The verifier of a row: the section's, or what the row names."""
    return section.type if section.verifier is None else read_field(row, section.verifier)


def _reads_answer(section: SingleReward, row: Row) -> bool:
    """True if a row's verifier reads the right answer."""
    named = _name_verifier(section, row)
    return any(name == named and _compares(name) for name in section.verifiers)


def _explain_unread(section: SingleReward, option: str, row: Row, answer: str) -> str | None:
    """Says that a row's right answer cannot be read whole; None if it can, or need not be read."""
    named = _name_verifier(section, row)
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


def _find_fault(section: SingleReward, judge: bool, row: Row) -> str | None:
    """Returns what is wrong with a row, which may name its own verifier; None if nothing is."""
    named = _name_verifier(section, row)
    for name in section.verifiers:
        if named == name:
            return _fault(section, name, row)
    others = (UNREWARDED, JUDGE) if judge else (UNREWARDED,)
    if named in others:
        return None
    assert section.verifier is not None, "the section's own verifier is one of them"
    known = ", ".join((*section.verifiers, *others))
    return complaint(row, {section.verifier: "text"}) or (
        f"names in the field {section.verifier!r} the verifier {named!r}; this recipe has: {known}"
    )
