"""Rewards for following instructions that a program can check: length, words, form. They depend on no language.

A row has a list of them, each an object with an `id`, one of `KINDS`, and that kind's arguments.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import ConfigDict, Field, NonNegativeInt, TypeAdapter, ValidationError

from lockstep.config.section import Section, rule
from lockstep.core.types import Prompt
from lockstep.data.rows import Row
from lockstep.data.templates import complaint, read_field
from lockstep.data.thoughts import drop_thought
from lockstep.rewards.options import InstructionSection

_WORD = re.compile(r"\w+(?:['’\-]\w+)*")
_SENTENCE_END = re.compile(r"(?<![.!?…])[.!?…]++[\"'”’)\]]*+(?=\s|$)|[。！？]+[」』”）]*")
_PARAGRAPH_END = re.compile(r"\n\s*\n")
_BULLET = re.compile(r"^[ \t]*[-*•][ \t]+\S", re.MULTILINE)
_FENCE = re.compile(r"```(?:json)?[ \t]*\n(.*)\n[ \t]*```", re.DOTALL | re.IGNORECASE)

Text = Annotated[str, Field(min_length=1)]
Texts = Annotated[list[Text], Field(min_length=1)]


class Instruction(Section):
    """An instruction that a response is checked against: the arguments of all kinds, of which a kind takes some."""

    model_config = ConfigDict(strict=True)

    id: str
    at_least: NonNegativeInt | None = None
    at_most: NonNegativeInt | None = None
    text: Text | None = None
    texts: Texts | None = None
    words: Texts | None = None

    @rule
    def _has_the_arguments_of_its_kind(self) -> None:
        if self.id not in KINDS:
            raise ValueError(f"unknown id {self.id!r}; choose one of: {', '.join(KINDS)}")
        takes = KINDS[self.id].takes
        given = {name for name, value in self if value is not None} - {"id"}
        if given - set(takes) or set(takes) - given - set(_RANGE) or (takes and not given & set(takes[-2:])):
            raise ValueError(
                f"{self.id} takes {', '.join(takes) or 'nothing'}, and has {', '.join(sorted(given)) or 'nothing'}"
            )
        if self.at_least is not None and not self.fits(self.at_least):
            raise ValueError(f"at_least is {self.at_least} and at_most {self.at_most}, so no number fits")

    def fits(self, count: int) -> bool:
        """True if a number is in the range."""
        return (self.at_least or 0) <= count and (self.at_most is None or count <= self.at_most)

    def is_followed(self, response: str) -> bool:
        """True if the response follows it."""
        return KINDS[self.id].check(response, self)


@dataclass(frozen=True)
class Kind:
    """A kind of instruction.

    Attributes:
        check: True if a response follows an instruction.
        takes: The arguments that it takes.
    """

    check: Callable[[str, Any], bool]
    takes: tuple[str, ...] = ()


_RANGE = ("at_least", "at_most")


def _count(count: Callable[[str], int]) -> Kind:
    """A kind that asks for a number of something."""
    return Kind(lambda response, given: given.fits(count(response)), _RANGE)


def _has_keywords(response: str, given: Any) -> bool:
    patterns = [rf"(?<!\w){re.escape(word)}(?!\w)" for word in given.words]
    return all(given.fits(len(re.findall(pattern, response, re.IGNORECASE))) for pattern in patterns)


def _is_json(response: str, given: Any) -> bool:
    fenced = _FENCE.fullmatch(response.strip())
    try:
        json.loads(fenced[1] if fenced else response)
    except (ValueError, RecursionError):
        return False
    return True


def _plain(text: str) -> str:
    """Normalizes a text for comparison: lower case, without space around."""
    return text.strip().casefold()


KINDS = {
    "words": _count(lambda response: len(_WORD.findall(response))),
    "sentences": _count(lambda response: sum(_WORD.search(part) is not None for part in _SENTENCE_END.split(response))),
    "paragraphs": _count(lambda response: sum(bool(part.strip()) for part in _PARAGRAPH_END.split(response))),
    "bullets": _count(lambda response: len(_BULLET.findall(response))),
    "keywords": Kind(_has_keywords, ("words", *_RANGE)),
    "starts_with": Kind(lambda response, given: _plain(response).startswith(_plain(given.text)), ("text",)),
    "ends_with": Kind(lambda response, given: _plain(response).endswith(_plain(given.text)), ("text",)),
    "one_of": Kind(lambda response, given: _plain(response) in map(_plain, given.texts), ("texts",)),
    "uppercase": Kind(lambda response, given: response.isupper()),
    "lowercase": Kind(lambda response, given: response.islower()),
    "no_commas": Kind(lambda response, given: not set(",，、،") & set(response)),
    "json": Kind(_is_json),
}
"""Kinds of instructions, by their `id` in rows."""


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


_INSTRUCTIONS = TypeAdapter(list[Instruction])
KNOWN = _INSTRUCTIONS.json_schema(), [(name, *kind.takes) for name, kind in KINDS.items()]
"""All kinds with their arguments."""


def _instructions(row: Row, name: str) -> Sequence[Instruction]:
    """The instructions in the field `name` of a row, which are valid."""
    return _INSTRUCTIONS.validate_python(read_field(row, name))


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
        number, *path = problem["loc"]
        message = problem["msg"].removeprefix("Value error, ")
        where = ": ".join([*map(str, path), message])
        return f"has in the field {name!r} an instruction, number {int(number) + 1}, that is invalid: {where}"
    return None
