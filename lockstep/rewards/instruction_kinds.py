"""Kinds of instruction that a program can check: length, words, form. They depend on no language."""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Callable
from typing import Annotated, Literal, Self, get_args

from pydantic import ConfigDict, Field, NonNegativeInt, PositiveInt, model_validator

from lockstep.config import Section
from lockstep.errors import InputError

_WORD = re.compile(r"\w+(?:['’\-]\w+)*")
_SENTENCE_END = re.compile(r"(?<![.!?…])[.!?…]++[\"'”’)\]]*+(?=\s|$)|[。！？]+[」』”）]*")
_PARAGRAPH_END = re.compile(r"\n\s*\n")
_BULLET = re.compile(r"^[ \t]*[-*•][ \t]+\S", re.MULTILINE)
_HIGHLIGHT = re.compile(r"(\*{1,2})(?=[^\s*])[^*\n]*(?<=[^\s*])\1")
_PLACEHOLDER = re.compile(r"\[[^\[\]\n]+\]")
_TITLE = re.compile(r"^[^\S\n]*+<<[^\S\n]*+[^<>\s][^<>\n]*+>>", re.MULTILINE)
_FENCE = re.compile(r"```(?:json)?[ \t]*\n(.*)\n[ \t]*```", re.DOTALL | re.IGNORECASE)
_QUOTES = ('""', "“”", "„“", "«»", "「」")

Text = Annotated[str, Field(min_length=1)]
Texts = Annotated[list[Text], Field(min_length=1)]


class Instruction(Section):
    """An instruction that a response is checked against."""

    model_config = ConfigDict(strict=True)

    @abstractmethod
    def is_followed(self, response: str) -> bool:
        """True if the response follows it."""


class Ranged(Instruction):
    """A number of something, from at_least to at_most."""

    at_least: NonNegativeInt | None = None
    at_most: NonNegativeInt | None = None

    @model_validator(mode="after")
    def _a_range(self) -> Self:
        if self.at_least is None and self.at_most is None:
            raise InputError("say at_least, at_most or both")
        if self.at_least is not None and not self.fits(self.at_least):
            raise InputError(f"at_least is {self.at_least} and at_most {self.at_most}, so no number fits")
        return self

    def fits(self, count: int) -> bool:
        """True if the number is in the range."""
        return (self.at_least or 0) <= count and (self.at_most is None or count <= self.at_most)


def _paragraphs(text: str) -> list[str]:
    return [part for part in _PARAGRAPH_END.split(text) if part.strip()]


def _count_matches(pattern: re.Pattern[str]) -> Callable[[str], int]:
    return lambda response: len(pattern.findall(response))


_COUNTS: dict[str, Callable[[str], int]] = {
    "words": _count_matches(_WORD),
    "sentences": lambda response: sum(_WORD.search(part) is not None for part in _SENTENCE_END.split(response)),
    "paragraphs": lambda response: len(_paragraphs(response)),
    "bullets": _count_matches(_BULLET),
    "highlights": _count_matches(_HIGHLIGHT),
    "placeholders": _count_matches(_PLACEHOLDER),
    "capital_words": lambda response: sum(word.isupper() for word in _WORD.findall(response)),
}


class Counted(Ranged):
    """A number of words, of sentences and so on, over the whole response."""

    id: Literal["words", "sentences", "paragraphs", "bullets", "highlights", "placeholders", "capital_words"]

    def is_followed(self, response: str) -> bool:
        return self.fits(_COUNTS[self.id](response))


class NumberOfParts(Ranged):
    """Parts that are not empty, between separators."""

    id: Literal["parts"]
    separator: Text

    def is_followed(self, response: str) -> bool:
        return self.fits(sum(bool(part.strip()) for part in response.split(self.separator)))


class NumberOfSections(Ranged):
    """Lines that begin with the heading and a number."""

    id: Literal["sections"]
    heading: Text

    def is_followed(self, response: str) -> bool:
        line = rf"^[ \t#*]*{re.escape(self.heading)}\s{{0,99}}\d"
        return self.fits(len(re.findall(line, response, re.MULTILINE)))


class NumberOfOneLetter(Ranged):
    """One character, in either case."""

    id: Literal["letter"]
    letter: Annotated[str, Field(min_length=1, max_length=1)]

    def is_followed(self, response: str) -> bool:
        return self.fits(response.lower().count(self.letter.lower()))


class Keywords(Ranged):
    """Occurrences of each keyword as a separate word; case does not matter."""

    id: Literal["keywords"]
    words: Texts

    def is_followed(self, response: str) -> bool:
        return all(self.fits(_occurrences(word, response)) for word in self.words)


class BeginsOrEndsWith(Instruction):
    """The response begins or ends with the text; case and space around do not matter."""

    id: Literal["starts_with", "ends_with"]
    text: Text

    def is_followed(self, response: str) -> bool:
        meets = str.startswith if self.id == "starts_with" else str.endswith
        return meets(_plain(response), _plain(self.text))


class ParagraphStartsWith(Instruction):
    """One of the paragraphs, counted from 1, begins with the text; case and space around do not matter."""

    id: Literal["paragraph_starts_with"]
    paragraph: PositiveInt
    text: Text

    def is_followed(self, response: str) -> bool:
        paragraphs = _paragraphs(response)
        return self.paragraph <= len(paragraphs) and _plain(paragraphs[self.paragraph - 1]).startswith(
            _plain(self.text)
        )


class OneOf(Instruction):
    """The response is one of the texts and no more; case and space around do not matter."""

    id: Literal["one_of"]
    texts: Texts

    def is_followed(self, response: str) -> bool:
        return _plain(response) in map(_plain, self.texts)


def _is_quoted(response: str) -> bool:
    text = response.strip()
    return len(text) > 2 and text[0] + text[-1] in _QUOTES


def _is_json(response: str) -> bool:
    text = response.strip()
    fenced = _FENCE.fullmatch(text)
    try:
        json.loads(fenced[1] if fenced else text)
    except (ValueError, RecursionError):
        return False
    return True


_FORMS: dict[str, Callable[[str], bool]] = {
    "uppercase": str.isupper,
    "lowercase": str.islower,
    "no_commas": lambda response: not set(",，、،") & set(response),
    "quoted": _is_quoted,
    "json": _is_json,
    "title": lambda response: _TITLE.search(response) is not None,
}


class Form(Instruction):
    """A form of the whole response, without arguments; `title`: a line begins with one <<in angular brackets>>."""

    id: Literal["uppercase", "lowercase", "no_commas", "quoted", "json", "title"]

    def is_followed(self, response: str) -> bool:
        return _FORMS[self.id](response)


class Postscript(Instruction):
    """A line begins with the marker, and something follows it."""

    id: Literal["postscript"]
    marker: Text = "P.S."

    def is_followed(self, response: str) -> bool:
        line = re.compile(rf"^[^\S\n]*{re.escape(self.marker)}(?!\Z)", re.MULTILINE | re.IGNORECASE)
        return line.search(response.rstrip()) is not None


Kind = (
    Counted
    | NumberOfParts
    | NumberOfSections
    | NumberOfOneLetter
    | Keywords
    | BeginsOrEndsWith
    | ParagraphStartsWith
    | OneOf
    | Form
    | Postscript
)
KINDS: dict[str, type[Instruction]] = {
    name: kind for kind in get_args(Kind) for name in get_args(kind.model_fields["id"].annotation)
}
"""Every class, by its `id` in rows."""


def _occurrences(words: str, text: str) -> int:
    return len(re.findall(rf"(?<!\w){re.escape(words)}(?!\w)", text, re.IGNORECASE))


def _plain(text: str) -> str:
    """Normalizes a text for comparison: lower case, without space around."""
    return text.strip().casefold()
