"""Verdicts: the value that a judge's reply announces, or the cause of a missing one.

The parser reads the last announcement of a verdict (`Score:`, `Winner:`), since a judge thinks
aloud before it decides. The value can have markup (`**Score:** <4>/5.`); an ambiguous value (`4-5`,
`3 + 1`, `A and B`, `4, perhaps 5`) or a retracted one (`A. Actually B`) is not a verdict. An
announcement that the judge quotes (`it says "Score: 5"`) does not count. A reply that is only the
value needs no announcement. Only text after the judge's thought is read (`lockstep.data.thoughts`).

Patterns are matched at one position each, with possessive quantifiers (`*+`), so that the time is
linear in the length of the reply.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar, get_args

from lockstep.data.thoughts import drop_thought

NoVerdictCause = Literal[
    "no_match",
    "not_a_number",
    "not_whole",
    "out_of_range",
    "not_a_name",
    "unfinished",
    "prompt_too_long",
    "unreachable",
]
"""The cause of a missing verdict.

In order: the reply announces no verdict, or one that is not a number, not an integer, outside the
scale, or not A or B; the reply was truncated; the question was too long; there was no reply.
"""
CAUSES: tuple[NoVerdictCause, ...] = get_args(NoVerdictCause)
UNANSWERED: tuple[NoVerdictCause, ...] = ("prompt_too_long", "unreachable")
"""The causes without a reply."""

PairWinner = Literal["A", "B"]
V = TypeVar("V", covariant=True)

_BEFORE = r"(?>(?:[\s*_`\"'“”‘’(\[{<$|\\]|boxed\b|text\b)*)"
_AFTER = r"[*_`\"'“”‘’)\]}>$\\]*"
_AROUND = r"[\s*_`\"]{0,4}"
_NUMBER = r"(?>[-−+]?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+))"
_INVISIBLE = r"\x00-\x08\x0e-\x1f\u200b-\u200f\u202a-\u202e\u2060-\u2069"
_UNAMBIGUOUS = (
    rf"(?![\w+?{_INVISIBLE}]|[.,][0-9]|[ \t]*+(?:%|percent\b|[×÷^±→⇒⟶<>≤≥]|[-−–—+=]++(?:>|[ "
    r"\t]*+[0-9]))"
    r"|\s++(?:or|and)\s++(?:higher|more|above|better|up|lower|less|below|worse|down)\b)"
)
_SCALE = (
    r"(?:stars?|points?|pts)?+\s*+(?:/|(?:out )?of\b|on an? scale (?:of|from) [0-9.]+ "
    r"?(?:to|-|–) ?)"
)
_SCALE_IN_PARENTHESES = re.compile(
    r"(?:\b(?:of|to|max(?:imum)?|scale)\b[ :]*|[0-9.][ \t]*[-–—/][ "
    r"\t]*|^\s*/?\s*)((?:[0-9]+\.)?[0-9]+)"
    r"(?![\w.]|\s*[-–—/=]|\s+to\b)",
    re.IGNORECASE,
)
_SCORE = re.compile(
    rf"{_BEFORE}(?P<number>{_NUMBER})(?>{_AFTER})(?:\s*+\(?+\s*+{_SCALE}\s*+{_BEFORE}(?P<scale>{_NUMBER})(?>{_AFTER}))?"
    rf"{_UNAMBIGUOUS}(?!\s*+/)",
    re.IGNORECASE,
)
_NAME = re.compile(
    rf"{_BEFORE}(?i:(?:judge?ment|response|answer|assistant|output|option)\b)?{_BEFORE}(?P<name>[AB])(?>{_AFTER})"
    r"(?=\s*+$|[^\S\n]*+\n|[.,;:!]|\s++(?i:because|since|is|wins)\b|\s*+[-–—(])(?!,?+\s*+(?:(?i:and|or)\b|[AB]\b))"
    r"(?!!=|\s*+[-–—]++\s*+>|\s++(?i:is\s++(?:\w++\s++){0,2}(?:not|worse|worst|loser|losing|wrong|weaker|inferior)\b))"
)
# Bounded, so that every reply parses quickly.
_FILLERS = (
    r"(?:[\s,;:(\[{*_~`&|/…–—.+-]|\binstead "
    r"of\b|\b(?:or|to|and|a|but|only|just|no|not|even|maybe|perhaps|possibly|"
    r"probably|rather|actually|really|up|through|until|versus|vs|nearly|almost|about|closer|plus|minus|then|I|it|is|be|would|could|"
    r"might|may|should|say|also|score|judge?ment|response|answer|assistant|output|option)\b){0,24}?"
)
_TAKES_BACK = (
    r"\b(?:actually|really|rather|correction|corrected|on (?:second "
    r"thoughts?|reflection)|wait|sorry|i mean|"
    r"make (?:that|it)|edit(?:ed)?|revised|take (?:that|it|this) back|(?:i['’]?d|i would) (?:go "
    r"with|say|give))\b"
)
_OTHER_NUMBER = (
    r"(?:(?<![\w.])[0-9.]*[0-9]|[¼½¾⅓⅔]|(?<=minus )one\b|(?<=plus )one\b|"
    r"\b(?:half|two|three|four|five|six|seven|eight|nine|ten)\b)"
)
_CASE = r"[ \t]+(?:if|for|when|under|in|on)\b"
_SECOND_SCORE = re.compile(
    rf"(?:{_FILLERS}{_OTHER_NUMBER}|{_CASE}[^\n]{{0,200}}?{_OTHER_NUMBER}{_CASE})", re.IGNORECASE
)
_CORRECTED_SCORE = re.compile(rf"{_TAKES_BACK}{_FILLERS}{_OTHER_NUMBER}", re.IGNORECASE)
_SECOND_NAME = re.compile(rf"(?:\s*+\([^()\n]{{0,40}}\))?(?i:{_FILLERS})(?-i:\b[AB]\b)")
_CORRECTED_NAME = re.compile(rf"(?i:{_TAKES_BACK}{_FILLERS})(?-i:\b[AB]\b)")
_SENTENCE = re.compile(r"[^\n.!?]*(?:(?:(?<=vs)\.|[.!?](?!\s|$))[^\n.!?]*)*")
_PAIRED = (("“", "”"), ("«", "»"), ("‘", "’"))
# maximum number of characters per line to search, to avoid quadratic time
_LINE = 4000
_LEADING = " \t>*_#\"'`“‘«"
_DRESS = " *_`#\n"
_CLOSING = re.compile(r"[\s.!*_~`\"'“”‘’)\]}>$\\]*")


@dataclass(frozen=True)
class JudgeVerdict(Generic[V]):
    """A value, or the cause of a missing value."""

    value: V | None
    cause: NoVerdictCause | None = None


VerdictParser = Callable[[str], JudgeVerdict[V]]
"""Returns the verdict of a finished reply."""


class ScoreParser:
    """The parser of scores.

    Args:
        low: The lowest score of the scale.
        high: The highest.
        word: Regular expression of the word before the colon that announces the score, in any case.
        decimals: True if 3.5 is a valid score; 4.0 always is.
    """

    def __init__(self, low: float, high: float, word: str, decimals: bool) -> None:
        self._low = low
        self._high = high
        self._decimals = decimals
        self._announced = _build_announcement(word)

    def __call__(self, reply: str) -> JudgeVerdict[float]:
        """Returns the verdict of a finished reply."""
        reply = drop_thought(reply)
        value = _find_value(self._announced, _SCORE, reply, _SECOND_SCORE, _CORRECTED_SCORE)
        if not isinstance(value, re.Match):
            return JudgeVerdict(None, value or "not_a_number")
        score = float(value["number"].replace("−", "-"))
        scales = [value["scale"]] if value["scale"] else []
        announcement = _find_own_announcement(self._announced, reply)
        if announcement is not None:
            scales += _SCALE_IN_PARENTHESES.findall(announcement["parenthesis"] or "")
        if not self._low <= score <= self._high or any(
            float(scale) != self._high for scale in scales
        ):
            return JudgeVerdict(None, "out_of_range")
        if not (self._decimals or score.is_integer()):
            return JudgeVerdict(None, "not_whole")
        return JudgeVerdict(score)

    def without_score(self, reply: str) -> str:
        """The reasons in a reply, without thought, last score and announcement; may be empty."""
        scored = self(reply).value is not None
        reply = drop_thought(reply)
        last = _find_own_announcement(self._announced, reply)
        if last is None:
            if scored:
                return ""
            return reply
        value = _SCORE.match(reply, last.end())
        end = last.end() if value is None else value.end()
        return f"{reply[: last.start()].rstrip(_DRESS)}\n{reply[end:].lstrip(_DRESS + '.')}".strip()


class WinnerParser:
    """The parser of the winner, A or B.

    Args:
        word: As in `ScoreParser`.
    """

    def __init__(self, word: str) -> None:
        self._announced = _build_announcement(word)

    def __call__(self, reply: str) -> JudgeVerdict[PairWinner]:
        """Returns the verdict of a finished reply."""
        value = _find_value(
            self._announced, _NAME, drop_thought(reply), _SECOND_NAME, _CORRECTED_NAME
        )
        if not isinstance(value, re.Match):
            return JudgeVerdict(None, value or "not_a_name")
        return JudgeVerdict("A" if value["name"] == "A" else "B")


def _build_announcement(word: str) -> re.Pattern[str]:
    """The pattern of an announcement: the word, optional markup and scale, and a colon."""
    return re.compile(
        rf"(?<![^\W_])(?:{word})(?![^\W_]){_AROUND}(?:\((?P<parenthesis>[^()\n]{{0,40}})\))?{_AROUND}[:：=]",
        re.IGNORECASE,
    )


def _find_value(
    announced: re.Pattern[str],
    value: re.Pattern[str],
    reply: str,
    second: re.Pattern[str],
    corrected: re.Pattern[str],
) -> re.Match[str] | NoVerdictCause | None:
    """Finds a verdict's value; None if it is invalid; a cause if nothing is announced.

    Args:
        announced: Pattern of an announcement.
        value: Pattern of a value.
        reply: The reply.
        second: Pattern of a second value in the same sentence.
        corrected: Pattern of a value that replaces an earlier one.
    """
    own = _find_own_announcement(announced, reply)
    if own is not None:
        found = value.match(reply, own.end())
        if found is None:
            return None
        sentence = _SENTENCE.match(reply, found.end())
        assert sentence is not None, "the sentence pattern matches the empty string"
        twice = second.match(reply, found.end(), sentence.end()) or corrected.search(
            reply, found.end()
        )
        less_than = found[0].count("<") > found[0].count(">")
        if twice or less_than:
            return None
        return found
    alone = value.match(reply)
    if alone is not None and _CLOSING.fullmatch(reply, alone.end()):
        return alone
    return "no_match"


def _find_own_announcement(announced: re.Pattern[str], reply: str) -> re.Match[str] | None:
    """Finds the last announcement that is not quoted, else the last at the start of a line."""
    unquoted: re.Match[str] | None = None
    leading: re.Match[str] | None = None
    for match in announced.finditer(reply):
        before = reply[max(0, match.start() - _LINE) : match.start()].rpartition("\n")[2]
        straight = any(before.count(mark) % 2 for mark in '"`') or before.endswith("'")
        paired = any(before.count(opening) > before.count(closing) for opening, closing in _PAIRED)
        if not (straight or paired or before.lstrip().startswith(">")):
            unquoted = match
        elif not before.strip(_LEADING):
            leading = match
    return unquoted or leading
