"""Finds a math answer in a text: in a box, after a marker, in math mode, or as a number.

All functions run in linear time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lockstep.rewards.math_notation import LONGEST, find_changing_words, read_expression

_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*(?:\{|([^\s$\\{},]+))?")
_BRACE = re.compile(r"\\.|[{}]|\\$", re.DOTALL)
_SPACE = r"(?:[\s$]|\\[()\[\],;:! ]|\\q?quad)*"
_BETWEEN = re.compile(
    rf"{_SPACE}(?:(?:[,;、和]|\b(?:and|or)\b|\\text\{{\s*(?:and|or)\s*\}}){_SPACE})+"
)
_LONGEST_GAP = 60
_INNER = r"((?:[^\\]|\\[^()\[\]])+)"
_MATHEMATICS = re.compile(
    rf"(?<!\\)(?:\\\({_INNER}\\\)|\\\[{_INNER}\\\]|\$\$([^$]+)\$\$"
    r"|\$(?P<space> ?)(?!\s)([^$\n]+)(?<!\s)(?P=space)\$(?!\d))"
)
_PLAIN_WORDS = re.compile(r"[A-Za-z]{3,} +[A-Za-z]{2,}")
_SIGN = "-+*/^=<>−≤≥≠×·÷±∪∩"
_ATOM = rf"(?:\([^()\n]{{1,200}}\)|[{_SIGN}!-~€£¥₹°²³π√])+"
_JOINT = (
    rf"(?:(?<=[{_SIGN}])[^\S\n]+|[^\S\n]+(?=[{_SIGN}]\s)|(?<=[\d)])[^\S\n]+(?=[{_SIGN}])"
    r"|(?<=\d) (?=\d+/\d|[a-z]{1,3}\^[23]))"
)
_RUN = re.compile(rf"{_ATOM}(?:{_JOINT}{_ATOM})*")
_BEFORE_RUN = re.compile(r'^(?:["*=<>/^,)\]}]|[-+](?=\s)|[A-Za-z]\s*=)["\s*=]*')
_ANSWER = re.compile(r"(?![a-z])[^.\n]{0,100}?(?:\b(?:is|are|be)\b|[:：=])[\s:*=]*")
_EXPLAINED = re.compile(r"[-+]?\$?[\d.,]+\s+\(")


@dataclass(frozen=True)
class _AnswerSpan:
    """A piece of a text from `start` to `end` with its contents; several contents form a list."""

    start: int
    end: int
    contents: list[str]


def find_answer(text: str) -> str | None:
    """Returns the answer of a response as LaTeX; None if no answer parses completely.

    Takes the last box, else the full text if it is an answer, else the text after the word
    "answer", else the last formula or number.
    """
    boxes = find_boxes(text)
    if boxes is not None:
        return _parse_elements(boxes)
    return parse_whole_answer(text) or _parse_after_answer(text) or _read_last(text)


def find_marked(text: str) -> str | None:
    """Returns the answer of a response after its marker; None as in `find_answer`."""
    boxes = find_boxes(text)
    if boxes is not None:
        return _parse_elements(boxes)
    line = _first_line(text)
    if _EXPLAINED.match(line):
        return _read_first(line)
    after = line.rpartition("=")[2]
    return (
        parse_whole_answer(line)
        or parse_whole_answer(after)
        or _read_first(after)
        or _read_first(line)
    )


def find_right_answer(text: str, marked: bool) -> str | None:
    """Returns a right answer as LaTeX; None if it does not parse completely.

    Args:
        text: Text of the row, after the marker if there is one.
        marked: True if the text followed a marker, so that only its first line counts.
    """
    boxes = find_boxes(text)
    if boxes is not None:
        return _parse_elements(boxes)
    return parse_whole_answer(_first_line(text) if marked else text.strip().lstrip("#"))


def parse_whole_answer(text: str) -> str | None:
    """Parses a text that is only an answer, with optional units."""
    text = text.strip()
    if len(text) > LONGEST:
        return None
    pieces = _find_mathematics(text)
    if not pieces:
        return read_expression(text)
    before = text[: pieces[0].start].strip(" *")
    after = text[pieces[0].end :].strip(" *.,;")
    alone = len(pieces) == 1 and not before and re.fullmatch(r"[^\d$\\=<>+*/()]*", after)
    if alone:
        return _parse_elements(pieces[0].contents)
    return None


def find_boxes(text: str) -> list[str] | None:
    """Contents of the last box and of the boxes that form a list with it; None without a box.

    The list is empty if the last box is not closed.
    """
    boxes = _join_lists(text, _scan_boxes(text))
    if boxes:
        return boxes[-1].contents
    return None


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0].strip()[: 2 * LONGEST]


def _scan_boxes(text: str) -> Iterator[_AnswerSpan]:
    """Yields the outermost boxes in order; an unclosed box has no content."""
    position = 0
    while (box := _BOX.search(text, position)) is not None:
        position = box.end()
        if not box[0].endswith("{"):
            yield _AnswerSpan(box.start(), position, [box[1]] if box[1] else [])
            continue
        depth = 1
        for brace in _BRACE.finditer(text, position):
            depth += {"{": 1, "}": -1}.get(brace[0], 0)
            if depth == 0:
                yield _AnswerSpan(box.start(), brace.end(), [text[position : brace.start()]])
                position = brace.end()
                break
        else:
            yield _AnswerSpan(box.start(), len(text), [])
            return


def _find_mathematics(text: str) -> list[_AnswerSpan]:
    """Finds formulas between delimiters; the dollar sign of a price is not a delimiter."""
    found: list[_AnswerSpan] = []
    for span in _MATHEMATICS.finditer(text):
        content = next(filter(None, span.group(1, 2, 3, 5)))
        if not _PLAIN_WORDS.search(content):
            changing = find_changing_words(text[span.end() : span.end() + _LONGEST_GAP])
            found.append(
                _AnswerSpan(span.start(), span.end() + len(changing), [content + changing])
            )
    return _join_lists(text, found)


def _join_lists(text: str, pieces: Iterable[_AnswerSpan]) -> list[_AnswerSpan]:
    """Joins pieces that are separated only by a comma or the word "and"."""
    joined: list[_AnswerSpan] = []
    for piece in pieces:
        gap = text[joined[-1].end : piece.start] if joined else ""
        if piece.contents and len(gap) <= _LONGEST_GAP and _BETWEEN.fullmatch(gap):
            last = joined.pop()
            last.contents.extend(piece.contents)
            piece = _AnswerSpan(last.start, piece.end, last.contents)
        joined.append(piece)
    return joined


def _parse_elements(contents: list[str]) -> str | None:
    """Parses the elements of a list, or a single answer."""
    if sum(map(len, contents)) > LONGEST:
        return None
    read = [read_expression(content, boxed=True) or "" for content in contents]
    if read and all(read):
        return ", ".join(read)
    return None


def _parse_after_answer(text: str) -> str | None:
    """Parses the text after the word "answer": the rest of the line, or its beginning."""
    after = text[-LONGEST:].rpartition("nswer")[2]
    named = _ANSWER.match(after)
    if named is None or len(after) == len(text):
        return None
    sentence = after[named.end() :].partition("\n")[0]
    # a factorial is written between dollar signs
    return parse_whole_answer(sentence.rstrip("! ")) or _read_first(sentence)


def _read_first(text: str) -> str | None:
    """Parses the first piece of a text: a formula between delimiters, or a run."""
    pieces = _find_mathematics(text)
    runs = list(_find_runs(text[: pieces[0].start] if pieces else text))
    if runs:
        return runs[0]
    if pieces:
        return _parse_elements(pieces[0].contents)
    return None


def _read_last(text: str) -> str | None:
    """Parses the last piece of a text: a formula between delimiters, or a run."""
    pieces = _find_mathematics(text)
    after = text[pieces[-1].end :] if pieces else text
    runs = list(_find_runs(after[-2 * LONGEST :]))
    if runs:
        return runs[-1]
    if pieces:
        return _parse_elements(pieces[-1].contents)
    return None


def _find_runs(text: str) -> Iterator[str | None]:
    """Yields numbers as LaTeX, with adjacent signs and brackets, and words such as dozen."""
    end = 0
    for run in _RUN.finditer(text):
        if run.start() < end or not any(sign.isdigit() for sign in run[0]):
            continue
        changing = find_changing_words(text[run.end() : run.end() + _LONGEST_GAP])
        end = run.end() + len(changing)
        content = _BEFORE_RUN.sub("", run[0].rstrip('.,;:!?"')) + changing
        yield read_expression(content) or read_expression(content.rpartition("=")[2])
