"""Tests that an answer is told from the thought before it."""

from __future__ import annotations

import pytest
from transformers import PreTrainedTokenizerFast

from lockstep.data.thoughts import (
    THOUGHT_MARKS,
    ThoughtMarks,
    decode_marked,
    drop_thought,
    opening_mark,
)
from lockstep.models.tokenizer import words_tokenizer

ANSWERS = {
    "two and two is <think>": "two and two is <think>",
    "<think>\ntwo and two\n</think>\n\n4": "4",
    " \n<think>a</think>4": "4",
    "two and two\n</think>\n\n4": "4",
    "<think>two and two": "",
    "<think>a</think>": "",
    "<think>a</think>\n<think>b</think> 4": "4",
    "<think>a</think><think>b": "",
    "<think>a</think>close it with </think>, then": "close it with </think>, then",
    '<think>I write "</think>" last, or `</think>`</think>4': "4",
    "The mark `</think>` ends a thought.": "The mark `</think>` ends a thought.",
    "Write <think>, think, write </think>.": "Write <think>, think, write </think>.",
    "<think>not </thinking> yet</think>4": "4",
    "<think>a</thinking>4": "",
    "": "",
}


@pytest.mark.parametrize(("response", "answer"), ANSWERS.items())
def test_drop_thought_removes_leading_thoughts_and_keeps_answer(response: str, answer: str) -> None:
    assert drop_thought(response) == answer


@pytest.mark.parametrize("marks", THOUGHT_MARKS)
def test_drop_thought_recognizes_every_kind_of_thought_marks(marks: ThoughtMarks) -> None:
    thought = f"two and two{marks.closing}"
    prompt = f"What is 2 + 2?\n{marks.opening}\n"

    assert drop_thought(f"{marks.opening}{thought}4") == "4"
    assert drop_thought(f"{thought}\n4") == "4"
    assert drop_thought(f"{thought}\n4", prompt) == "4"
    assert drop_thought("two and two", prompt) == ""


def test_prompt_with_closed_thought_leaves_no_thought_open() -> None:
    assert opening_mark("<think>\n") == "<think>"
    assert opening_mark("<think>\n\n</think>\n\n") == ""
    assert drop_thought("4", "<think>\n\n</think>\n\n") == "4"
    assert drop_thought("<think>a</think>4", "<think>") == "4", "it is opened twice"


def with_specials(*texts: str) -> PreTrainedTokenizerFast:
    tokenizer = words_tokenizer(["two and two 4 analysis final"])
    tokenizer.add_special_tokens({"additional_special_tokens": list(texts)})
    return tokenizer


@pytest.mark.parametrize(
    ("marks", "response"),
    [
        (("[THINK]", "[/THINK]"), "[THINK] two and two [/THINK] 4 <eos>"),
        (
            ("<|channel|>", "<|message|>"),
            "<|channel|>analysis<|message|> two <|channel|>final<|message|> 4 <eos>",
        ),
    ],
)
def test_decode_marked_keeps_thought_marks_that_are_special_tokens(
    marks: tuple[str, ...], response: str
) -> None:
    tokenizer = with_specials(*marks)
    decoded = decode_marked(tokenizer, tokenizer.encode(response, add_special_tokens=False))
    assert all(mark in decoded for mark in marks)
    assert "<eos>" not in decoded
    plain = tokenizer.encode("two and two <eos>", add_special_tokens=False)
    assert decode_marked(tokenizer, plain) == tokenizer.decode(plain, skip_special_tokens=True)
