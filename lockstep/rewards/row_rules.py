"""A reward's requirements on rows: valid instructions and tests, verifier, right answer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from lockstep.data.rows import DataRow
from lockstep.data.selection import RowRule
from lockstep.data.templates import find_field_fault, read_field
from lockstep.rewards import code_reward, instruction_reward
from lockstep.rewards.math_reward import READING, MathReward
from lockstep.rewards.options import RewardSection, SingleReward

UNREWARDED = "none"
"""The verifier name of a row without a reward."""

_COMPARING = {"math", "python", "server"}
"""The verifiers that read the right answer."""

NO_ANSWERS = RowRule(lambda row: None, "no reward reads an answer", lambda row: False)
"""The rule for rows that do not need a right answer."""


def build_row_rule(section: SingleReward | None, option: str = "reward") -> RowRule:
    """A reward's requirements on rows.

    Args:
        section: The reward section; None: no reward.
        option: Key of the section in the recipe, for messages.
    """
    if section is None:
        return NO_ANSWERS
    if isinstance(section, RewardSection) and section.parts is not None:
        parts = section.parts.items()
        rules = [build_row_rule(part, f"{option}.parts.{name}") for name, part in parts]
        return RowRule(
            lambda row: next(
                (fault for rule in rules if (fault := rule.fault(row)) is not None), None
            ),
            tuple(rule.key for rule in rules),
            lambda row: any(rule.reads_answer(row) for rule in rules),
            lambda row, answer: next(
                (fault for rule in rules if (fault := rule.answer_fault(row, answer)) is not None),
                None,
            ),
        )
    fields = (
        section.verifier,
        section.instructions and section.instructions.field,
        section.code and section.code.tests,
    )
    key = (
        section.type,
        section.verifier_names,
        fields,
        instruction_reward.KNOWN,
        section.marker,
        READING,
    )
    return RowRule(
        partial(_find_fault, section),
        key,
        partial(_reads_answer, section),
        partial(_explain_unread, section, option),
    )


def _name_verifier(section: SingleReward, row: DataRow) -> object:
    """The verifier of a row, from the section or from the row."""
    if section.verifier is None:
        return section.type
    return read_field(row, section.verifier)


def _reads_answer(section: SingleReward, row: DataRow) -> bool:
    """True if a row's verifier reads the right answer."""
    named = _name_verifier(section, row)
    return any(name == named and name in _COMPARING for name in section.verifier_names)


def _explain_unread(section: SingleReward, option: str, row: DataRow, answer: str) -> str | None:
    """Returns the error in a row's right answer; None if it parses or is not needed."""
    named = _name_verifier(section, row)
    if named == "math":
        return MathReward(section.marker, option).explain_unread(answer)
    return None


def _find_fault(section: SingleReward, row: DataRow) -> str | None:
    """Returns the error in a row; None if it is valid."""
    named = _name_verifier(section, row)
    known = (*section.verifier_names, UNREWARDED)
    if named not in known:
        assert section.verifier is not None, "the section's own verifier is one of them"
        return find_field_fault(row, {section.verifier: "text"}) or (
            f"field {section.verifier!r} names the unknown verifier {named!r}; this recipe has: "
            f"{', '.join(known)}"
        )
    instructions = section.instructions and section.instructions.field
    tests = section.code and section.code.tests
    lists = (
        (
            "instructions",
            instructions,
            "instruction",
            instruction_reward.describe_instruction_fault,
        ),
        ("code", tests, "test", code_reward.describe_test_fault),
    )
    for verifier, field, noun, fault in lists:
        if field is not None and named == verifier:
            return find_fault_in_list(row, field, noun, fault)
    return None


def find_fault_in_list(
    row: DataRow, field: str, noun: str, fault: Callable[[Any], str | None]
) -> str | None:
    """Returns the error in a row's list field or its items; None if it is valid."""
    wrong = find_field_fault(row, {field: "list"})
    if wrong is not None:
        return wrong
    items = read_field(row, field)
    if not items:
        return f"field {field!r} is an empty list"
    for number, item in enumerate(items, start=1):
        wrong = fault(item)
        if wrong is not None:
            return f"field {field!r}: {noun} number {number} {wrong}"
    return None
