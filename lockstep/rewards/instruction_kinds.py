"""Kinds of instruction that a program can check: length, words, form. They depend on no language."""

from __future__ import annotations

import json
import re
from abc import abstractmethod
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


class Counted(Ranged):
    """A number that is counted over the whole response."""

    def is_followed(self, response: str) -> bool:
        return self.fits(self.count(response))

    @abstractmethod
    def count(self, response: str) -> int:
        """Counts them in the response."""


class NumberOfWords(Counted):
    """Words: letters and digits in a row, also over an apostrophe or a hyphen."""

    id: Literal["words"]

    def count(self, response: str) -> int:
        return len(_WORD.findall(response))


class NumberOfSentences(Counted):
    """Sentences: text up to . ! ? … before a space or the end, or 。！？ anywhere."""

    id: Literal["sentences"]

    def count(self, response: str) -> int:
        return sum(_WORD.search(part) is not None for part in _SENTENCE_END.split(response))


class NumberOfParagraphs(Counted):
    """Paragraphs: text between blank lines."""

    id: Literal["paragraphs"]

    def count(self, response: str) -> int:
        return len(_paragraphs(response))


class NumberOfParts(Counted):
    """Parts that are not empty, between separators."""

    id: Literal["parts"]
    separator: Text

    def count(self, response: str) -> int:
        return sum(bool(part.strip()) for part in response.split(self.separator))


class NumberOfBullets(Counted):
    """Lines that begin with -, * or • and a space."""

    id: Literal["bullets"]

    def count(self, response: str) -> int:
        return len(_BULLET.findall(response))


class NumberOfSections(Counted):
    """Lines that begin with the heading and a number."""

    id: Literal["sections"]
    heading: Text

    def count(self, response: str) -> int:
        return len(re.findall(rf"^[ \t#*]*{re.escape(self.heading)}\s{{0,99}}\d", response, re.MULTILINE))


class NumberOfHighlights(Counted):
    """Stretches *between stars*, or **two**, within a line."""

    id: Literal["highlights"]

    def count(self, response: str) -> int:
        return len(_HIGHLIGHT.findall(response))


class NumberOfPlaceholders(Counted):
    """Words [in square brackets], to be filled in."""

    id: Literal["placeholders"]

    def count(self, response: str) -> int:
        return len(_PLACEHOLDER.findall(response))


class NumberOfCapitalWords(Counted):
    """Words in capitals: at least one letter, and none in lower case."""

    id: Literal["capital_words"]

    def count(self, response: str) -> int:
        return sum(word.isupper() for word in _WORD.findall(response))


class NumberOfOneLetter(Counted):
    """One character, in either case."""

    id: Literal["letter"]
    letter: Annotated[str, Field(min_length=1, max_length=1)]

    def count(self, response: str) -> int:
        return response.lower().count(self.letter.lower())


class Keywords(Ranged):
    """Occurrences of each keyword as a separate word; case does not matter."""

    id: Literal["keywords"]
    words: Texts

    def is_followed(self, response: str) -> bool:
        return all(self.fits(_occurrences(word, response)) for word in self.words)


class StartsWith(Instruction):
    """The response begins with the text; case and space around do not matter."""

    id: Literal["starts_with"]
    text: Text

    def is_followed(self, response: str) -> bool:
        return _plain(response).startswith(_plain(self.text))


class EndsWith(Instruction):
    """The response ends with the text; case and space around do not matter."""

    id: Literal["ends_with"]
    text: Text

    def is_followed(self, response: str) -> bool:
        return _plain(response).endswith(_plain(self.text))


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


class Uppercase(Instruction):
    """No lower-case letter, and at least one capital."""

    id: Literal["uppercase"]

    def is_followed(self, response: str) -> bool:
        return response.isupper()


class Lowercase(Instruction):
    """No capital, and at least one lower-case letter."""

    id: Literal["lowercase"]

    def is_followed(self, response: str) -> bool:
        return response.islower()


class NoCommas(Instruction):
    """No comma, in any script."""

    id: Literal["no_commas"]

    def is_followed(self, response: str) -> bool:
        return not set(",，、،") & set(response)


class Quoted(Instruction):
    """The whole response stands between double quotation marks."""

    id: Literal["quoted"]

    def is_followed(self, response: str) -> bool:
        text = response.strip()
        return len(text) > 2 and text[0] + text[-1] in _QUOTES


class Json(Instruction):
    """The whole response is JSON, between fences or not."""

    id: Literal["json"]

    def is_followed(self, response: str) -> bool:
        text = response.strip()
        fenced = _FENCE.fullmatch(text)
        try:
            json.loads(fenced[1] if fenced else text)
        except (ValueError, RecursionError):
            return False
        return True


class Title(Instruction):
    """A line begins with a title <<in double angular brackets>>."""

    id: Literal["title"]

    def is_followed(self, response: str) -> bool:
        return _TITLE.search(response) is not None


class Postscript(Instruction):
    """A line begins with the marker, and something follows it."""

    id: Literal["postscript"]
    marker: Text = "P.S."

    def is_followed(self, response: str) -> bool:
        line = re.compile(rf"^[^\S\n]*{re.escape(self.marker)}(?!\Z)", re.MULTILINE | re.IGNORECASE)
        return line.search(response.rstrip()) is not None


Kind = (
    NumberOfWords
    | NumberOfSentences
    | NumberOfParagraphs
    | NumberOfParts
    | NumberOfBullets
    | NumberOfSections
    | NumberOfHighlights
    | NumberOfPlaceholders
    | NumberOfCapitalWords
    | NumberOfOneLetter
    | Keywords
    | StartsWith
    | EndsWith
    | ParagraphStartsWith
    | OneOf
    | Uppercase
    | Lowercase
    | NoCommas
    | Quoted
    | Json
    | Title
    | Postscript
)
KINDS: dict[str, type[Instruction]] = {get_args(kind.model_fields["id"].annotation)[0]: kind for kind in get_args(Kind)}
"""Every class, by its `id` in rows."""


def _paragraphs(text: str) -> list[str]:
    return [part for part in _PARAGRAPH_END.split(text) if part.strip()]


def _occurrences(words: str, text: str) -> int:
    return len(re.findall(rf"(?<!\w){re.escape(words)}(?!\w)", text, re.IGNORECASE))


def _plain(text: str) -> str:
    """Normalizes a text for comparison: lower case, without space around."""
    return text.strip().casefold()
