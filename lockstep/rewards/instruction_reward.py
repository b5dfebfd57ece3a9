"""Rewards for following instructions that a program can check.

A row has a list of them, each an object with an `id`, one of `instruction_kinds.KINDS`, and that kind's arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from lockstep.config.errors import format_value
from lockstep.data.rows import Row
from lockstep.data.templates import complaint, read_field
from lockstep.data.thoughts import drop_thought
from lockstep.rewards.instruction_kinds import KINDS, Instruction, Kind
from lockstep.rewards.options import InstructionSection
from lockstep.types import Prompt


@dataclass(frozen=True)
class InstructionReward:
    """The share of a row's instructions that the answer in a response follows; its thought does not count.

    Attributes:
        section: The field of the instructions, and the choice between a share and all or nothing.
    """

    section: InstructionSection

    def __call__(
        self, prompts: Sequence[Prompt], responses: Sequence[str], answers: Sequence[str]
    ) -> list[float | None]:
        """See `Reward`."""
        return [self._score(prompt, response) for prompt, response in zip(prompts, responses, strict=True)]

    def _score(self, prompt: Prompt, response: str) -> float:
        answer = drop_thought(response, prompt.text)
        followed = [each.is_followed(answer) for each in _instructions(prompt.row, self.section.field)]
        return float(all(followed)) if self.section.all_or_nothing else sum(followed) / len(followed)


_INSTRUCTIONS = TypeAdapter(list[Annotated[Kind, Field(discriminator="id")]])
KNOWN = _INSTRUCTIONS.json_schema()
"""All kinds with their arguments, as a JSON schema."""


def _instructions(row: Row, name: str) -> Sequence[Instruction]:
    """The instructions in the field `name` of a row, which are valid."""
    return _INSTRUCTIONS.validate_python([_drop_nulls(item) for item in read_field(row, name)])


def fault(row: Row, name: str) -> str | None:
    """Returns what is wrong with the instructions in a field of a row; None if nothing is."""
    wrong = complaint(row, {name: "list"})
    if wrong is not None:
        return wrong
    if not read_field(row, name):
        return f"has in the field {name!r} no instruction"
    try:
        _instructions(row, name)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        number, *rest = problem["loc"]
        return f"has in the field {name!r} an instruction, number {int(number) + 1}, {_complaint(problem, rest)}"
    return None


def _complaint(problem: ErrorDetails, path: list[int | str]) -> str:
    """Formats a problem; `path` leads from an instruction to it: its id, then one of its arguments."""
    known = ", ".join(KINDS)
    match problem["type"]:
        case "union_tag_invalid":
            return f"whose id is {format_value(problem['input']['id'])}; there are: {known}"
        case "union_tag_not_found":
            return f"that has no id; there are: {known}"
        case _ if not path:
            return f'that is not {{"id": text, ...}}; ids are: {known}'
    kind, *key = map(str, path)
    return f"{kind}, {_argument_complaint(problem, '.'.join(key), KINDS[kind])}"


def _argument_complaint(problem: ErrorDetails, key: str, kind: type[Instruction]) -> str:
    message = problem["msg"].removeprefix("Value error, ")
    match problem["type"]:
        case "extra_forbidden":
            arguments = ", ".join(name for name in kind.model_fields if name != "id")
            return f"that takes no {key}; it takes {arguments or 'nothing'}"
        case "missing":
            return f"that lacks {key}"
        case "value_error":
            return f"that cannot be followed: {message}"
    return f"whose {key} is {format_value(problem['input'])}: {message[0].lower()}{message[1:]}"


def _drop_nulls(item: Any) -> Any:
    """Drops the arguments that are null, since a table has the same columns for all instructions."""
    return {key: value for key, value in item.items() if value is not None} if isinstance(item, dict) else item
