"""New prompts: what is asked, what is taken, and what becomes of the rest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from row_files import write_rows

from lockstep.algorithms.self_rewarding.new_prompts import PromptWriter, TooFewPromptsError
from lockstep.config import DataSection
from lockstep.data.jsonl import JsonlIndex
from lockstep.data.prompts import PromptRows
from lockstep.data.text_field import TextField, text_field
from lockstep.judge.asking import ChatConversation, ModelAnswer
from lockstep.judge.templates import JudgeTemplate
from lockstep.models.tokenizer import words_tokenizer


class Scripted:
    """Answers in the order of a list; remembers what it was asked. Implements `Answering`."""

    def __init__(self, replies: Sequence[ModelAnswer], too_long: str = "never") -> None:
        self._replies, self._too_long = iter(replies), too_long
        self.asked: list[str] = []
        self.keys: list[int] = []

    def escape_controls(self, text: str) -> str:
        return text.replace("<s>", "< s>")

    def count_excess_tokens(self, conversations: Sequence[ChatConversation]) -> list[int]:
        return [int(self._too_long in conversation[0]["content"]) for conversation in conversations]

    def answer_conversations(
        self, conversations: Sequence[ChatConversation], keys: Sequence[int]
    ) -> list[ModelAnswer | None]:
        self.asked += [str(conversation[0]["content"]) for conversation in conversations]
        self.keys += keys
        return [next(self._replies) for _ in conversations]


def said(*texts: str) -> list[ModelAnswer]:
    return [ModelAnswer(text, finished=True) for text in texts]


@pytest.fixture
def prompts(tmp_path: Path) -> PromptRows:
    """Four prompts, one of them with a control token."""
    rows = ["What is 1 + 1?", "What is 2 + 2?", "what  is 3 + 3?", "<s> 4"]
    tokenizer = words_tokenizer(rows)
    path = tmp_path / "rows.jsonl"
    write_rows(path, ({"question": text, "answer": ""} for text in rows))
    return PromptRows(
        JsonlIndex(path), tokenizer, DataSection(train="rows.jsonl", max_prompt_tokens=20)
    )


def writer(prompts: PromptRows, answering: Scripted, max_attempts: int = 3) -> PromptWriter:
    template = JudgeTemplate(
        "{example_1} / {example_2} ?", ("example_1", "example_2"), "new_prompts.template"
    )
    return PromptWriter(
        answering, template, prompts, TextField("question", talk=False), max_attempts, 0
    )


def test_rejected_new_prompts_are_counted_by_cause_and_retried(prompts: PromptRows) -> None:
    replies = [
        *said("", "What is\n1 + 1? ", "What is 5 + 5?"),
        ModelAnswer("What is", finished=False),
        *said("1 + " * 40, "WHAT IS 5 + 5?", " What is <s> 6? "),
        *said("What is 7?"),
    ]
    answering = Scripted(replies)
    rows, metrics = writer(prompts, answering)(0, 3)
    assert [row["question"] for row in rows] == ["What is 5 + 5?", "What is < s> 6?", "What is 7?"]
    assert metrics.floats() == {
        "attempts": 8, "made": 3, "request_too_long": 0, "unfinished": 1, "empty": 1, "too_long": 1, "known": 1,
        "repeated": 1,
    }  # fmt: skip
    assert len(set(answering.keys)) == 8


def test_prompt_writer_examples_are_distinct_and_redrawn_each_iteration(
    prompts: PromptRows,
) -> None:
    def asked(iteration: int) -> list[str]:
        answering = Scripted(said(*(f"What is {number}?" for number in range(12))))
        writer(prompts, answering)(iteration, 12)
        return answering.asked

    pairs = [text.removesuffix(" ?").split(" / ") for text in asked(0)]
    assert all(one != other for one, other in pairs)
    assert {text for pair in pairs for text in pair} == {
        "What is 1 + 1?", "What is 2 + 2?", "what  is 3 + 3?", "< s> 4"
    }  # fmt: skip
    assert asked(0) == asked(0) != asked(1)


def test_prompt_writer_fails_after_max_attempts_with_counts_by_cause(prompts: PromptRows) -> None:
    answering = Scripted(said("new", "", "", "", "", ""))
    with pytest.raises(
        TooFewPromptsError,
        match=r"iteration 1: 6 attempts gave only 1 of 2 new prompts \(5 empty\)",
    ):
        writer(prompts, answering)(1, 2)
    assert len(answering.asked) == 6


def test_text_field_reads_first_user_message_and_writes_one_message_conversation() -> None:
    field = text_field(DataSection(train="rows.jsonl", messages="talk", max_prompt_tokens=9))
    said = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    more = [{"role": "assistant", "content": "Yes?"}, {"role": "user", "content": "And?"}]
    assert field.read_text({"talk": [*said, *more]}) == "Hi"
    assert field.build_row("Why?") == {"talk": [{"role": "user", "content": "Why?"}]}
