"""Pairs of answers to one prompt, a chosen and a rejected one, for learning from preferences."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from lockstep.batch import Batch
from lockstep.data.answers import AnswerEncoder, answer_fault, build_batch, is_empty, read_answer
from lockstep.data.encoded_rows import EncodedRows
from lockstep.data.messages import Message
from lockstep.data.pair_options import PairSection
from lockstep.data.prompts import fault_of, note_unread_tools, prompts_of, too_long
from lockstep.data.rows import Row, Rows, read_number
from lockstep.data.selection import Head, Needs, Selection
from lockstep.data.templates import complaint, read_field
from lockstep.errors import shorten
from lockstep.types import Prompt


@dataclass(frozen=True)
class PreferencePair:
    """One row to learn a preference from.

    Attributes:
        prompt: The prompt, tokenized by itself, exactly as a sampler will get it.
        chosen: Token ids of the better answer, the stop token last.
        rejected: Tokens of the worse one, likewise.
        scores: Scores of both answers; empty where rows have none.
    """

    prompt: Prompt
    chosen: tuple[int, ...]
    rejected: tuple[int, ...]
    scores: tuple[float, ...]

    @property
    def longest(self) -> int:
        """Tokens of the prompt with the longer answer."""
        return len(self.prompt.tokens) + max(len(self.chosen), len(self.rejected))


class Pairs(EncodedRows[PreferencePair]):
    """The pairs of a data file, read and tokenized on demand; indexed and ordered as `Prompts` are.

    Args:
        rows: The data.
        tokenizer: The model's.
        data: Templates, limits, and whether to shuffle.
        max_tokens: Longest prompt and answer together; a row with a longer one is over-long, as with a long prompt.
        stops: See `AnswerEncoder`.
        head: See `Selection`.
        limit: Name of `max_tokens` in messages.

    Raises:
        DataError: A row lacks a field, has two equal answers or is over-long, and is not to be skipped.
        ValueError: A template is malformed, or the tokenizer lacks a stop token or a chat template that is needed.
    """

    def __init__(
        self,
        rows: Rows,
        tokenizer: PreTrainedTokenizerBase,
        data: PairSection,
        max_tokens: int,
        stops: Collection[int] = (),
        head: Head = None,
        limit: str = "dpo.max_tokens",
    ) -> None:
        self._answers = AnswerEncoder(tokenizer, data, stops)
        self._tokenizer = tokenizer
        self._data = data
        self._max_tokens, self._limit = max_tokens, limit
        self._prompt_fault = fault_of(tokenizer, data)
        templates = {**data.prompt_templates, **data.completion_templates}
        needs = Needs(templates, self._fault, lambda *read: self._lengths(rows, *read), ("pairs", max_tokens, limit))
        self.selection = Selection(rows, tokenizer, data, needs, head)
        first = self.selection.read_first()
        note_unread_tools(first, tokenizer, data)
        self._answers.note_unread((row, self._read_answers(row, "row")) for row in first)

    def at(self, position: int, count: int, seed: int) -> Batch:
        """The pairs at `position` … `position + count − 1` of a run, two sequences each; see `data.order`."""
        return self._collate(self.read(position, count, seed))

    def render(self, position: int, count: int, seed: int) -> list[dict[str, Any]]:
        """The same pairs as text, plain enough for JSON."""
        return [self._render(pair) for pair in self.read(position, count, seed)]

    def first(self, limit: int | None = None) -> Batch:
        """The pairs in the order of the file, at most the first `limit`."""
        return self._collate(self.read_first(limit))

    def _collate(self, pairs: Sequence[PreferencePair]) -> Batch:
        answers = [(pair.prompt.tokens, answer) for pair in pairs for answer in (pair.chosen, pair.rejected)]
        scores = [score for pair in pairs for score in pair.scores]
        return replace(build_batch(answers), sample={"score": torch.tensor(scores)} if scores else {}, group_size=2)

    def _render(self, pair: PreferencePair) -> dict[str, Any]:
        answers = {"chosen": pair.chosen, "rejected": pair.rejected}
        texts = {name: self._tokenizer.decode(list(ids), skip_special_tokens=True) for name, ids in answers.items()}
        scores = {f"{name}_score": score for name, score in zip(answers, pair.scores, strict=False)}
        return {"id": pair.prompt.id, "prompt": pair.prompt.text, **texts, **scores}

    def _encode(self, rows: Rows, numbers: Sequence[int], contents: Sequence[Row]) -> list[PreferencePair]:
        prompts = prompts_of(rows, numbers, contents, self._tokenizer, self._data)
        answers = [self._read_answers(row, rows.where(i)) for i, row in zip(numbers, contents, strict=True)]
        chosen = self._answers(prompts, [better for better, _ in answers])
        rejected = self._answers(prompts, [worse for _, worse in answers])
        scores = [tuple(self._scores(row).values()) for row in contents]
        return [PreferencePair(*parts) for parts in zip(prompts, chosen, rejected, scores, strict=True)]

    def _read_answers(self, row: Row, where: str) -> tuple[Message, Message]:
        return read_answer(self._data.chosen, row, where), read_answer(self._data.rejected, row, where)

    def _scores(self, row: Row) -> dict[str, float]:
        """Worth of the answers of a row, by its fields."""
        return {name: float(read_field(row, name)) for name in self._data.score_fields}

    def _fault(self, row: Row) -> str | None:
        """Says what is wrong with a row that has the fields of the templates; None if nothing is."""
        data = self._data
        wrong = self._prompt_fault(row) or complaint(row, dict.fromkeys(data.score_fields, "number"))
        wrong = wrong or answer_fault(data.chosen, row) or answer_fault(data.rejected, row)
        if wrong is not None:
            return wrong
        endless = next((name for name in data.score_fields if read_number(read_field(row, name)) is None), None)
        if endless is not None:
            return f"has in the field {endless!r} {shorten(str(read_field(row, endless)))}, which is no finite number"
        answers = self._read_answers(row, "row")
        if is_empty(answers[0]):
            return "has an empty answer as the chosen one"
        wrong, chosen = self._answers.examine(row, answers[0])
        if wrong is not None:
            return wrong
        wrong, rejected = self._answers.examine(row, answers[1])
        if wrong is not None:
            return wrong
        if chosen == rejected:
            return "has the same answer twice, chosen and rejected, from which nothing can be learned"
        better, worse = self._scores(row).values() if data.score_fields else (0.0, 0.0)
        if better < worse:
            chosen, rejected = (f"{name!r} {json.dumps(score)}" for name, score in self._scores(row).items())
            return f"has a chosen answer that is worth less than the rejected one: {chosen}, {rejected}"
        return None

    def _complaint(self, item: PreferencePair) -> str | None:
        if item.longest <= self._max_tokens:
            return too_long(item.prompt, self._data.max_prompt_tokens)
        return f"prompt and longer answer have {item.longest} tokens, more than {self._limit}={self._max_tokens}"
