"""The place of a mathematical answer in a text: a box, the text after a marker, mathematics, or a number.

Every function takes time linear in the length of its text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from lockstep.rewards.math_notation import LONGEST, find_changing_words, read_expression

_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
_BRACE = re.compile(r"\\.|[{}]|\\$", re.DOTALL)
_BETWEEN_BOXES = re.compile(
    r"(?:[\s$,;]|\\[()\[\]]|\\(?:quad|qquad)|\\[,;:! ]|\\text\{\s*(?:and|or)\s*\}|\band\b|\bor\b)*"
)
_LONGEST_GAP = 60
_DELIMITER = re.compile(r"\\[\[\]()$\\]|\$\$?|\n[ \t]*\n")
_CLOSING = {r"\(": r"\)", r"\[": r"\]", "$$": "$$", "$": "$"}
_BETWEEN_SPANS = re.compile(r"\s*(?:,\s*(?:and|or)?|and|or|、|和)\s*")
_PLAIN_WORDS = re.compile(r"[A-Za-z]{3,} +[A-Za-z]{2,}")
_ANSWER = re.compile(r"answer\b[^.\n]{0,100}?(?:\b(?:is|are|be)\b|[:：=])[\s:*=]*", re.IGNORECASE)
_FIRST_NUMBER = re.compile(
    r"[-+−]?\s?(?:\\?\$|[€£¥₹])?\s?[-+−]?(?:\d{1,3}(?:,\d{3})+(?![\d,])|\d+)?(?:\.\d+)?(?:/\d+)?"
)
_GOES_ON = re.compile(r"\s*[-+*/^=×·÷_!:]\s*[\d(\\A-Za-z]|\s*[,.]\s*\d|[.\s]*\\|[\d(]|\s+\d+/\d")
_FRACTION = re.compile(r" +\d+/\d")
_TOKEN = re.compile(r"[A-Za-z]+|\d+(?:[.,]\d+)*|[^\S\n]+|\n|.")
_JOINS = frozenset("+-−*/^=<>≤≥≠×·÷±∪∩")
_BREAKS = frozenset('?!:;"“”‘’`~#&|@…。，、！？：；（）')
_BRACKETS = {"(": ")", "[": "]", "{": "}"}


@dataclass(frozen=True)
class _Span:
    """A piece of a text, from `start` to `end`, with what it holds."""

    start: int
    end: int
    content: str


def find_answer(text: str) -> str | None:
    """Returns the answer of a response as LaTeX; None if there is none that can be read whole.

    The last box counts, else the whole text if it is an answer, else what follows the word "answer", else the last
    mathematics or number.
    """
    boxes = find_boxes(text)
    if boxes is not None:
        return _read_all(boxes)
    whole = read_whole(text)
    return whole if whole is not None else _read_prose(text)


def find_marked(text: str) -> str | None:
    """Returns the answer of a response in the text after its marker; None as for `find_answer`."""
    boxes = find_boxes(text)
    if boxes is not None:
        return _read_all(boxes)
    line = first_line(text)
    if re.match(r"[-+]?\$?[\d.,]+\s+\(", line):
        return _read_first_number(line)
    whole = read_whole(line)
    if whole is not None:
        return whole
    _, equals, after = line.rpartition("=")
    if equals and after.strip():
        return read_whole(after) or _read_first_number(after)
    return _read_first_number(line) or _read_prose(line)


def find_right_answer(text: str, marked: bool) -> str | None:
    """Returns a right answer as LaTeX; None if it cannot be read whole.

    Args:
        text: What the row holds, after the marker, if it has one.
        marked: The text followed a marker, so only its first line counts.
    """
    boxes = find_boxes(text)
    if boxes is not None:
        return _read_all(boxes)
    return read_whole(first_line(text) if marked else text.strip().lstrip("#"))


def read_whole(text: str) -> str | None:
    """Reads a text that is an answer and nothing else; units may follow it."""
    text = text.strip()
    if not text or len(text) > LONGEST:
        return None
    spans = _find_spans(text)
    if not spans:
        return read_expression(text)
    around = _cut_out(text, spans)
    if around is None:
        return None
    return _read_all([span.content for span in spans])


def first_line(text: str) -> str:
    """The first line with something in it; mathematics over several lines is one."""
    text = text.strip()
    for opening, closing in ((r"\[", r"\]"), ("$$", "$$"), (r"\begin{", r"\end{")):
        if text.startswith(opening):
            end = text.find(closing, len(opening))
            line_end = text.find("\n", max(end, 0))
            return text if line_end < 0 else text[:line_end]
    return text.partition("\n")[0].strip()


def find_boxes(text: str) -> list[str] | None:
    """Contents of the last box, after those that form a list with it; None if there is no box.

    A box in a box is part of the outer one. A last box that is never closed leaves no answer: its list is empty.
    """
    boxes: list[_Span] = []
    unclosed = False
    for box in _scan_boxes(text):
        unclosed = box.end < 0
        if not unclosed:
            boxes.append(box)
    if unclosed or not boxes:
        return [] if unclosed else None
    together = [boxes[-1]]
    for box in reversed(boxes[:-1]):
        gap = text[box.end : together[-1].start]
        if len(gap) > _LONGEST_GAP or not _is_list_gap(gap):
            break
        together.append(box)
    return [box.content for box in reversed(together)]


def _is_list_gap(gap: str) -> bool:
    """True if there is nothing but a comma, or the word and, between two boxes."""
    return bool(re.search(r",|;|and|or", gap)) and _BETWEEN_BOXES.fullmatch(gap) is not None


def _scan_boxes(text: str) -> Iterator[_Span]:
    """Yields the outermost boxes in order; the end of one that is never closed is -1."""
    place = 0
    while (box := _BOX.search(text, place)) is not None:
        place = box.end()
        if text[place : place + 1] != "{":
            bare = re.compile(r"[^\s$\\{},]+").match(text, place)
            if bare is not None:
                yield _Span(box.start(), bare.end(), bare[0])
            continue
        end = _find_closing_brace(text, place)
        if end < 0:
            yield _Span(box.start(), -1, "")
            return
        yield _Span(box.start(), end, text[place + 1 : end - 1])
        place = end


def _find_closing_brace(text: str, start: int) -> int:
    """The index after the brace that closes the one at `start`; -1 if none does."""
    depth = 0
    for brace in _BRACE.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return brace.end()
    return -1


def _read_all(contents: list[str]) -> str | None:
    """Reads the elements of a list, or one answer."""
    if sum(map(len, contents)) > LONGEST:
        return None
    read = [_read_inner(content) for content in contents]
    if not read or any(one is None for one in read):
        return None
    return ", ".join(one for one in read if one is not None)


def _read_inner(content: str) -> str | None:
    """Reads the content of a box or of mathematics; a box in a box is only a frame."""
    if len(content) > LONGEST:
        return None
    inner = list(_scan_boxes(content))
    if not inner:
        return read_expression(content, boxed=True)
    if len(inner) == 1 and content.strip() == content[inner[0].start : inner[0].end]:
        return _read_inner(inner[0].content)
    return None


def _find_spans(text: str) -> list[_Span]:
    """The pieces of mathematics between delimiters; a dollar sign before a price opens none."""
    spans: list[_Span] = []
    opening: re.Match[str] | None = None
    for mark in _DELIMITER.finditer(text):
        sign = mark[0]
        if opening is None or (opening[0] == "$" and sign.startswith("\n")):
            opening = mark if sign in _CLOSING else None
            continue
        if sign != _CLOSING[opening[0]]:
            continue
        content = text[opening.end() : mark.start()]
        if sign == "$" and not _is_mathematics(content, text[mark.end() : mark.end() + 1]):
            opening = mark
            continue
        changing = find_changing_words(text[mark.end() : mark.end() + _LONGEST_GAP])
        spans.append(_Span(opening.start(), mark.end() + len(changing), content + changing))
        opening = None
    return spans


def _is_mathematics(content: str, following: str) -> bool:
    """True if the text between two dollar signs is mathematics, not words between two prices."""
    even = content[:1].isspace() == content[-1:].isspace()
    return bool(content.strip()) and even and not following.isdigit() and not _PLAIN_WORDS.search(content[:LONGEST])


def _cut_out(text: str, spans: list[_Span]) -> str | None:
    """The text around mathematics, if it is only separators, signs of prices, and units; else None."""
    gaps = [text[first.end : second.start] for first, second in pairwise(spans)]
    if any(_BETWEEN_SPANS.fullmatch(gap) is None for gap in gaps):
        return None
    before = text[: spans[0].start].strip(" *")
    after = text[spans[-1].end :].strip(" *.,;")
    return "" if not before and re.fullmatch(r"[^\d$\\=<>+*/()]*", after) else None


def _read_prose(text: str) -> str | None:
    """Reads the answer in a sentence: after the word "answer", else the last mathematics or number."""
    tail = text[-LONGEST:]
    place = tail.casefold().rfind("answer")
    named = None if place < 0 or len(tail.casefold()) != len(tail) else _ANSWER.match(tail, place)
    if named is not None:
        sentence = tail[named.end() :].partition("\n")[0].strip()
        first = _read_sentence(sentence)
        if first is not None:
            return first
    return _read_last(text)


def _read_sentence(sentence: str) -> str | None:
    """Reads what a sentence begins with: mathematics, an expression, or a number."""
    whole = read_whole(sentence.rstrip("! "))  # a factorial stands between dollars
    if whole is not None:
        return whole
    spans = _find_spans(sentence)
    if spans:
        return _read_all([span.content for span in _first_together(sentence, spans)])
    runs = list(_find_runs(sentence))
    return read_expression(runs[0].content) if runs else None


def _first_together(text: str, spans: list[_Span]) -> list[_Span]:
    together = spans[:1]
    for span in spans[1:]:
        if _BETWEEN_SPANS.fullmatch(text[together[-1].end : span.start]) is None:
            break
        together.append(span)
    return together


def _read_last(text: str) -> str | None:
    """Reads the last mathematics of a text, with those that form a list with it, or the last number behind it."""
    spans = _find_spans(text)
    end = spans[-1].end if spans else 0
    runs = list(_find_runs(text[max(end, len(text) - LONGEST) :]))
    if runs:
        return read_expression(runs[-1].content)
    if not spans:
        return None
    together = spans[-1:]
    for span in reversed(spans[:-1]):
        gap = text[span.end : together[0].start]
        if len(gap) > _LONGEST_GAP or _BETWEEN_SPANS.fullmatch(gap) is None:
            break
        together.insert(0, span)
    return _read_all([span.content for span in together])


def _read_first_number(line: str) -> str | None:
    """Reads the number that a line begins with, if it is not the beginning of something longer."""
    line = line.strip().lstrip("*").strip()
    number = _FIRST_NUMBER.match(line)
    if number is None or not any(sign.isdigit() for sign in number[0]) or _GOES_ON.match(line, number.end()):
        return None
    letters = re.compile(r"[A-Za-z]+").match(line, number.end())
    if letters is not None:
        return read_expression(number[0] + letters[0])
    percent = re.compile(r"\s*\\?%").match(line, number.end())
    return read_expression(number[0] + ("%" if percent else find_changing_words(line[number.end() :])))


def _find_runs(text: str) -> Iterator[_Span]:
    """Yields the runs of mathematics among words: numbers, or what signs and brackets join to one."""
    end = 0
    for run in _scan_runs(text):
        if run.start >= end:  # else it is one of the words that change the value of the run before
            yield run
            end = run.end


def _scan_runs(text: str) -> Iterator[_Span]:
    tokens = list(_TOKEN.finditer(text))
    run: list[str] = []
    closing: list[str] = []
    start = 0
    glued = False
    for i, token in enumerate(tokens):
        sign = token[0]
        following = tokens[i + 1][0] if i + 1 < len(tokens) else "\n"
        if sign.isspace():
            joined = bool(run) and (run[-1] in _JOINS or following in _JOINS or bool(closing))
            mixed = bool(run) and run[-1].isdecimal() and _FRACTION.match(text, token.start()) is not None
            stays = "\n" not in sign and (joined or mixed)
        else:
            stays = not _is_word(sign, run, following) and not _ends_run(sign, following, bool(closing))
        if stays:
            start = start if run else token.start()
            if not run:
                glued = start > 0 and text[start - 1].isascii() and text[start - 1].isalnum()
            _track_brackets(sign, closing)
            run.append(sign)
            continue
        yield from _close_run(run, start, glued, sign, text[token.start() : token.start() + _LONGEST_GAP])
        run, closing = [], []
        glued = sign.isascii() and sign.isalpha()
    yield from _close_run(run, start, glued, "\n", "")


def _track_brackets(sign: str, closing: list[str]) -> None:
    if sign in _BRACKETS:
        closing.append(_BRACKETS[sign])
    elif closing and sign == closing[-1]:
        closing.pop()


def _is_word(sign: str, run: list[str], following: str) -> bool:
    """True for words, and for letters that stand alone without a sign that makes them mathematics."""
    if not sign[0].isalpha():
        return False
    if not sign.isascii() or len(sign) > 1:
        return sign not in {"π", "sqrt", "e", "E"} and not (sign == "e" and run)
    joined = (bool(run) and not run[-1].isspace()) or following in _JOINS or following == "("
    return not joined and not (following.isspace() and bool(run) and run[-1] in _JOINS)


def _ends_run(sign: str, following: str, in_brackets: bool) -> bool:
    if sign == "," and in_brackets:
        return False
    return sign in _BREAKS or sign == "\\" or (sign in ".,'" and not following.isdigit())


def _close_run(run: list[str], start: int, glued: bool, stopper: str, behind: str) -> Iterator[_Span]:
    """Yields a run that holds a digit and stands by itself, with words behind it that change its value."""
    content = "".join(run).strip()
    if not any(sign.isdigit() for sign in content) or glued:
        return
    if stopper.isascii() and stopper.isalpha() and run and not run[-1].isspace():
        content += stopper  # a unit, as in 5km, or another expression
    else:
        content += find_changing_words(behind)
    content = re.sub(r"^(?:[*=<>/^,)\]}]|[-+](?=\s))[\s*=]*", "", content)
    if not content.endswith(")") or content.count("(") == content.count(")"):
        yield _Span(start, start + len(content), content)
