"""Demonstrations for supervised fine-tuning: prompt, completion and stop token, with the mask on the completion."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from lockstep.batch import Batch
from lockstep.config import DataSection
from lockstep.data import messages
from lockstep.data.answers import AnswerEncoder, answer_fault, build_batch, of_text, read_answer
from lockstep.data.encoded_rows import EncodedRows
from lockstep.data.messages import Message
from lockstep.data.prompts import fault_of, note_unread_tools, prompts_of, too_long
from lockstep.data.rows import Row, Rows
from lockstep.data.selection import ANY_ROW, Head, Needs, Rule, Selection
from lockstep.data.templates import find_messages, read_field, render
from lockstep.types import Prompt


@dataclass(frozen=True)
class Demonstration:
    """One row to imitate.

    Attributes:
        prompt: The prompt, tokenized by itself, exactly as a sampler will get it.
        completion: Token ids of the completion, the stop token last.
    """

    prompt: Prompt
    completion: tuple[int, ...]

    def __len__(self) -> int:
        """Tokens of prompt and completion together."""
        return len(self.prompt.tokens) + len(self.completion)


def batch_of(demonstrations: Sequence[Demonstration]) -> Batch:
    """A batch of rows to imitate, `mask` on completions."""
    return build_batch([(row.prompt.tokens, row.completion) for row in demonstrations])


def answer_of(row: Row, where: str, data: DataSection) -> Message:
    """Returns the template filled from a row, or the last message of the row."""
    templates = list(data.completion_templates.values())
    if data.messages is not None and not templates:
        return messages.read_answer(row, data.messages)
    if len(templates) == 1 and find_messages(row, templates[0]) is not None:
        return read_answer(templates[0], row, where)
    return of_text("".join(render(template, row, where) for template in templates))


class Demonstrations(EncodedRows[Demonstration]):
    """The demonstrations of a data file, read and tokenized on demand; indexed and ordered as `Prompts` are.

    Args:
        rows: The data.
        tokenizer: The model's.
        data: Templates, limits, and whether to shuffle.
        max_tokens: Longest prompt and completion together; a longer row is over-long, like one with a long prompt.
        stops: See `AnswerEncoder`.
        head: See `Selection`.
        rule: Further requirements on a row.
        limit: Name of `max_tokens` in messages.

    Raises:
        DataError: A row lacks a field of a template, or is over-long, and is not to be skipped.
        ValueError: A template is malformed, or the tokenizer lacks a stop token or a chat template that is needed.
    """

    def __init__(
        self,
        rows: Rows,
        tokenizer: PreTrainedTokenizerBase,
        data: DataSection,
        max_tokens: int,
        stops: Collection[int] = (),
        head: Head = None,
        rule: Rule = ANY_ROW,
        limit: str = "sft.max_tokens",
    ) -> None:
        self._answers = AnswerEncoder(tokenizer, data, stops)
        self._tokenizer = tokenizer
        self._data = data
        self._max_tokens, self._limit = max_tokens, limit
        self._rule = rule
        key = ("demonstrations", max_tokens, limit, rule.key)
        self._prompt_fault = fault_of(tokenizer, data)
        templates = {**data.prompt_templates, **data.completion_templates}
        needs = Needs(templates, self._fault, lambda *read: self._lengths(rows, *read), key)
        self.selection = Selection(rows, tokenizer, data, needs, head)
        first = self.selection.read_first()
        note_unread_tools(first, tokenizer, data)
        self._answers.note_unread((row, [answer_of(row, "row", data)]) for row in first)

    def at(self, position: int, count: int, seed: int) -> Batch:
        """The same rows as a batch, `mask` on completions."""
        return batch_of(self.read(position, count, seed))

    def first(self, limit: int | None = None) -> Batch:
        """The first rows as a batch."""
        return batch_of(self.read_first(limit))

    def _encode(self, rows: Rows, numbers: Sequence[int], contents: Sequence[Row]) -> list[Demonstration]:
        prompts = prompts_of(rows, numbers, contents, self._tokenizer, self._data)
        answers = [answer_of(row, rows.where(i), self._data) for i, row in zip(numbers, contents, strict=True)]
        return [Demonstration(*parts) for parts in zip(prompts, self._answers(prompts, answers), strict=True)]

    def _fault(self, row: Row) -> str | None:
        """Says what is wrong with a row that has the fields of the templates; None if nothing is."""
        data, wrong = self._data, self._prompt_fault(row)
        if wrong is None and data.messages is not None and not data.completion_templates:
            wrong = messages.answer_fault(row, data.messages)
        wrong = wrong or self._completion_fault(row) or self._rule.fault(row)
        return wrong or self._answers.fault(row, answer_of(row, "row", data))

    def _completion_fault(self, row: Row) -> str | None:
        """Says what is wrong with what is learned of a row; None if nothing is."""
        for template in self._data.completion_templates.values():
            talk = find_messages(row, template)
            if talk is not None and len(read_field(row, talk)) > 1:
                return f"has several messages in the field {talk!r}, of which data.completion learns one, the answer"
            if talk is not None:
                return answer_fault(template, row)
        return None

    def _complaint(self, item: Demonstration) -> str | None:
        if len(item) <= self._max_tokens:
            return too_long(item.prompt, self._data.max_prompt_tokens)
        return f"prompt and completion have {len(item)} tokens, more than {self._limit}={self._max_tokens}"
