"""Demonstrations for supervised fine-tuning: prompt, completion, stop token; completions train."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from transformers import PreTrainedTokenizerBase

from lockstep.config import DataSection
from lockstep.core.errors import InputError
from lockstep.data import messages
from lockstep.data.answers import (
    AnsweredRow,
    AnsweredRows,
    answer_fault,
    build_answer,
    read_answer,
)
from lockstep.data.messages import ChatMessage
from lockstep.data.rows import DataRow, FileRows
from lockstep.data.selection import NUM_LOOKED_AT
from lockstep.data.templates import fill_template, find_messages, read_field
from lockstep.system.printable import print_note


def answer_of(row: DataRow, where: str, data: DataSection) -> ChatMessage:
    """Returns the template filled from a row, or the row's last message."""
    template = next(iter(data.completion_templates.values()), None)
    if template is None:
        assert data.messages is not None, "without a template the answer is in the messages"
        return read_field(row, data.messages)[-1]
    if find_messages(row, template) is not None:
        return read_answer(template, row, where)
    return build_answer(fill_template(template, row, where))


class DemonstrationRows(AnsweredRows):
    """The demonstrations of a data file; arguments: `AnsweredRows`."""

    def _read_answers(self, row: DataRow, where: str) -> Sequence[ChatMessage]:
        return [answer_of(row, where, self._data)]

    def _find_row_fault(self, row: DataRow) -> str | None:
        data = self._data
        wrong = self._prompt_fault(row)
        if wrong is None and data.messages is not None and not data.completion_templates:
            wrong = messages.answer_fault(row, data.messages)
        wrong = wrong or self._completion_fault(row) or self._rule.fault(row)
        return wrong or self._answers.examine_answer(row, answer_of(row, "row", data))[0]

    def _completion_fault(self, row: DataRow) -> str | None:
        """Returns the error in a row's completion; None if valid."""
        for template in self._data.completion_templates.values():
            talk = find_messages(row, template)
            if talk is not None and len(read_field(row, talk)) > 1:
                return (
                    f"has several messages in the field {talk!r}, but data.completion needs "
                    "exactly one, the answer"
                )
            if talk is not None:
                return answer_fault(template, row)
        return None


class TurnRows(DemonstrationRows):
    """Conversations of a data file, to learn from all assistant turns; see `DemonstrationRows`.

    Each turn is encoded as if it were the last one, after the prompt that a sampler receives. If
    this prompt continues the tokens of the turns before, the turns share a sequence.
    """

    def __init__(
        self, rows: FileRows, tokenizer: PreTrainedTokenizerBase, data: DataSection, *rest: Any
    ) -> None:
        if data.messages is None or data.completion_templates:
            raise InputError(
                "sft.all_turns requires whole conversations in one field; set "
                "data.messages, without data.completion"
            )
        super().__init__(rows, tokenizer, data, *rest)
        first = self.read_first(NUM_LOOKED_AT)
        count = sum(len(row.learned_sequences) > 1 for row in first)
        if count:
            print_note(
                f"the chat template of {self._tokenizer.name_or_path} rewrites earlier turns in "
                f"{count} of the first {len(first)} conversations; a rewritten conversation is "
                "learned as several sequences, each as the sampler would see it"
            )

    def _split_turns(self, row: DataRow) -> list[DataRow]:
        """The row up to each assistant message that is to be learned."""
        field = self._data.messages or ""
        talk = read_field(row, field)
        found: list[DataRow] = []
        for end, message in enumerate(talk, start=1):
            if message["role"] == "assistant" and message.get("weight") != 0:
                found.append({**row, field: talk[:end]})
        return found

    def _find_row_fault(self, row: DataRow) -> str | None:
        wrong = super()._find_row_fault(row)
        if wrong is not None:
            return wrong
        return next(filter(None, map(super()._find_row_fault, self._split_turns(row))), None)

    def _encode_rows(
        self, rows: FileRows, numbers: Sequence[int], contents: Sequence[DataRow]
    ) -> list[AnsweredRow]:
        split = list(map(self._split_turns, contents))
        repeated = [i for i, turns in zip(numbers, split, strict=True) for _ in turns]
        encoded = iter(super()._encode_rows(rows, repeated, [*chain(*split)]))
        return [_join_turns([next(encoded) for _ in turns]) for turns in split]


def _join_turns(turns: Sequence[AnsweredRow]) -> AnsweredRow:
    """Joins the turns of a conversation into as few sequences as keep their exact tokens."""
    sequences: list[list[tuple[int, ...]]] = []
    before: tuple[int, ...] = ()
    for turn in turns:
        [answer] = turn.answers
        given = turn.prompt.tokens
        if not before or given[: len(before)] != before:
            sequences.append([])
            before = ()
        sequences[-1] += [given[len(before) :], answer]
        before = given + answer
    return AnsweredRow(turns[0].prompt, turns[-1].answers, turns=sequences)
