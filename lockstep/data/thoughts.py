"""A model's thoughts before its answer, found by the marks around them.

The first closing mark ends a thought, as in chat templates that support thoughts: readers see the
text after it, which may contain the mark, for example in a tool argument; splitting at the last
mark would cut that answer. A quoted mark (`"</think>"`) does not count.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase  # slow to import: one second


@dataclass(frozen=True)
class ThoughtMarks:
    """The marks before and after a thought."""

    opening: str
    closing: str

    def find_closing(self, text: str, start: int = 0) -> re.Match[str] | None:
        """Finds the first closing mark that is not quoted."""
        mark = re.escape(self.closing)
        found = re.compile(rf"(?P<quote>[`\"']){mark}(?P=quote)|{mark}").finditer(text, start)
        return next((match for match in found if match["quote"] is None), None)


THOUGHT_MARKS = (
    ThoughtMarks("<think>", "</think>"),  # Qwen3, DeepSeek-R1, and most others
    ThoughtMarks("<thinking>", "</thinking>"),
    ThoughtMarks("[THINK]", "[/THINK]"),  # Magistral
    ThoughtMarks("◁think▷", "◁/think▷"),  # Kimi
    ThoughtMarks("<seed:think>", "</seed:think>"),  # Seed-OSS
    ThoughtMarks("<|START_THINKING|>", "<|END_THINKING|>"),  # Command A Reasoning
    ThoughtMarks("<|begin_of_thought|>", "<|end_of_thought|>"),  # OpenThinker
    ThoughtMarks("<|channel|>analysis", "<|channel|>final<|message|>"),  # gpt-oss
)
_BOTH_MARKS = tuple(f"{marks.opening} {marks.closing}" for marks in THOUGHT_MARKS)
_LONGEST_TAIL = 100


def drop_thought(response: str, prompt: str = "") -> str:
    """The answer in a response: everything after its leading thoughts.

    A thought that is never closed leaves no answer: the result is empty. A closing mark without an
    opening one before it ends a thought that the prompt opened. Later marks in the answer are text.

    Args:
        response: The response of a model.
        prompt: The text that it continues, if known.
    """
    by_prompt = _final_marks(prompt)
    end = 0
    if by_prompt is not None:
        end = _end_of_thought(response, 0, by_prompt)
    elif _marks_at(response, 0) is None:
        end = _end_without_opening(response)
    while (marks := _marks_at(response, end)) is not None:
        end = _end_of_thought(response, end, marks)
    if end:
        return response[end:].lstrip()
    return response


def opening_mark(prompt: str) -> str:
    """The opening mark at the end of a prompt; empty if it has none.

    With it, the response begins within a thought.
    """
    marks = _final_marks(prompt)
    if marks is None:
        return ""
    return marks.opening


def decode_marked(tokenizer: PreTrainedTokenizerBase, tokens: Sequence[int]) -> str:
    """Decodes tokens without special ones, except those that mark thoughts."""
    marking, others = _sort_special_tokens(tokenizer)
    if marking.isdisjoint(tokens):
        return str(tokenizer.decode(list(tokens), skip_special_tokens=True))
    return str(
        tokenizer.decode(
            [token for token in tokens if token not in others], skip_special_tokens=False
        )
    )


@lru_cache(maxsize=8)
def _sort_special_tokens(
    tokenizer: PreTrainedTokenizerBase,
) -> tuple[frozenset[int], frozenset[int]]:
    """The special tokens that mark thoughts, and the others; cached, since each response needs
    them.
    """
    special = zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True)
    marking: set[int] = set()
    for text, token in special:
        if any(text in pair for pair in _BOTH_MARKS):
            marking.add(token)
    return frozenset(marking), frozenset(tokenizer.all_special_ids) - marking


def _final_marks(prompt: str) -> ThoughtMarks | None:
    """The marks of a thought that the end of a prompt opens."""
    tail = prompt[-_LONGEST_TAIL:].rstrip()
    return next((marks for marks in THOUGHT_MARKS if tail.endswith(marks.opening)), None)


def _marks_at(response: str, start: int) -> ThoughtMarks | None:
    """The marks of a thought that begins here, ignoring white space."""
    while start < len(response) and response[start].isspace():
        start += 1
    return next(
        (marks for marks in THOUGHT_MARKS if response.startswith(marks.opening, start)), None
    )


def _end_of_thought(response: str, start: int, marks: ThoughtMarks) -> int:
    """The index after a thought's closing mark; the response's end if never closed."""
    closing = marks.find_closing(response, start)
    if closing is None:
        return len(response)
    return closing.end()


def _end_without_opening(response: str) -> int:
    """The index after the first closing mark, if no opening mark precedes it; else 0."""
    for marks in THOUGHT_MARKS:
        closing = marks.find_closing(response)
        if closing is not None and marks.opening not in response[: closing.start()]:
            return closing.end()
    return 0
