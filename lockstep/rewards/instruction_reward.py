"""Rewards for following instructions that a program can check: length, words, format.

They are language-independent. A row has a list of instructions, each an object with an `id` and its
arguments.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, NonNegativeInt, TypeAdapter, ValidationError

from lockstep.config.section import Section, rule
from lockstep.core.types import Prompt
from lockstep.data.templates import read_field
from lockstep.data.thoughts import drop_thought
from lockstep.rewards.options import InstructionSection

_WORD = re.compile(r"\w+(?:['’\-]\w+)*")
_SENTENCE_END = re.compile(r"(?<![.!?…])[.!?…]++[\"'”’)\]]*+(?=\s|$)|[。！？]+[」』”）]*")
_PARAGRAPH_END = re.compile(r"\n\s*\n")
_BULLET = re.compile(r"^[ \t]*[-*•][ \t]+\S", re.MULTILINE)
_FENCE = re.compile(r"```(?:json)?[ \t]*\n(.*)\n[ \t]*```", re.DOTALL | re.IGNORECASE)

NonEmptyText = Annotated[str, Field(min_length=1)]
NonEmptyTexts = Annotated[list[NonEmptyText], Field(min_length=1)]


def _is_json(response: str) -> bool:
    fenced = _FENCE.fullmatch(response.strip())
    try:
        json.loads(fenced[1] if fenced else response)
    except (ValueError, RecursionError):
        return False
    return True


def _normalize_text(text: str) -> str:
    """Normalizes a text for comparison: lower case, stripped."""
    return text.strip().casefold()


_COUNTS: dict[str, Callable[[str], int]] = {
    "words": lambda response: len(_WORD.findall(response)),
    "sentences": lambda response: sum(
        _WORD.search(part) is not None for part in _SENTENCE_END.split(response)
    ),
    "paragraphs": lambda response: sum(
        bool(part.strip()) for part in _PARAGRAPH_END.split(response)
    ),
    "bullets": lambda response: len(_BULLET.findall(response)),
}
_FORMS: dict[str, Callable[[str], bool]] = {
    "uppercase": str.isupper,
    "lowercase": str.islower,
    "no_commas": lambda response: not set(",，、،") & set(response),
    "json": _is_json,
}
_ENDS = {"starts_with": str.startswith, "ends_with": str.endswith}


class _InstructionBase(Section):
    model_config = ConfigDict(strict=True)


class _CountRange(_InstructionBase):
    at_least: NonNegativeInt = 0
    at_most: NonNegativeInt | None = None

    @rule
    def _some_number_fits(self) -> None:
        if not self.model_fields_set & {"at_least", "at_most"}:
            raise ValueError("needs at_least or at_most")
        if not self.contains_count(self.at_least):
            raise ValueError(
                f"at_least is {self.at_least} and at_most {self.at_most}, which excludes every "
                "number"
            )

    def contains_count(self, count: int) -> bool:
        """True if a count is in the range."""
        return self.at_least <= count and (self.at_most is None or count <= self.at_most)


class CountInstruction(_CountRange):
    """Requires a number of words, sentences, paragraphs or bullets."""

    id: Literal["words", "sentences", "paragraphs", "bullets"]

    def is_followed(self, response: str) -> bool:
        """True if a response follows it."""
        return self.contains_count(_COUNTS[self.id](response))


class KeywordInstruction(_CountRange):
    """Requires each keyword to occur a number of times."""

    id: Literal["keywords"]
    words: NonEmptyTexts

    def is_followed(self, response: str) -> bool:
        """True if a response follows it."""
        patterns = [rf"(?<!\w){re.escape(word)}(?!\w)" for word in self.words]
        return all(
            self.contains_count(len(re.findall(pattern, response, re.IGNORECASE)))
            for pattern in patterns
        )


class AffixInstruction(_InstructionBase):
    """Requires the response to start or end with a text."""

    id: Literal["starts_with", "ends_with"]
    text: NonEmptyText

    def is_followed(self, response: str) -> bool:
        """True if a response follows it."""
        return _ENDS[self.id](_normalize_text(response), _normalize_text(self.text))


class OneOf(_InstructionBase):
    """Requires the response to equal one of several texts."""

    id: Literal["one_of"]
    texts: NonEmptyTexts

    def is_followed(self, response: str) -> bool:
        """True if a response follows it."""
        return _normalize_text(response) in map(_normalize_text, self.texts)


class FormInstruction(_InstructionBase):
    """Requires the response to have a format."""

    id: Literal["uppercase", "lowercase", "no_commas", "json"]

    def is_followed(self, response: str) -> bool:
        """True if a response follows it."""
        return _FORMS[self.id](response)


AnyInstruction = CountInstruction | KeywordInstruction | AffixInstruction | OneOf | FormInstruction
READER: TypeAdapter[AnyInstruction] = TypeAdapter(
    Annotated[AnyInstruction, Field(discriminator="id")]
)
KNOWN = READER.json_schema()
"""JSON schema of all instructions."""


@dataclass(frozen=True)
class InstructionReward:
    """The share of a row's instructions that the answer follows; thoughts do not count.

    Attributes:
        section: The field with the instructions, and whether they count as a share or all or
            nothing.
    """

    section: InstructionSection

    def __call__(
        self, prompts: Sequence[Prompt], responses: Sequence[str], answers: Sequence[str]
    ) -> list[float | None]:
        """See `Reward`."""
        rewards = list[float | None]()
        for prompt, response in zip(prompts, responses, strict=True):
            answer = drop_thought(response, prompt.text)
            asked = map(READER.validate_python, read_field(prompt.row, self.section.field))
            followed = [each.is_followed(answer) for each in asked]
            if self.section.all_or_nothing:
                rewards.append(float(all(followed)))
            else:
                rewards.append(sum(followed) / len(followed))
        return rewards


def describe_instruction_fault(instruction: Any) -> str | None:
    """Returns the error in a row's instruction; None if it is valid."""
    try:
        READER.validate_python(instruction)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        message = problem["msg"].removeprefix("Value error, ")
        return f"is invalid: {': '.join([*map(str, problem['loc']), message])}"
    return None
