"""Pairs of answers to one prompt, a chosen and a rejected one, for learning from preferences."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from lockstep.core.batch import Batch
from lockstep.core.errors import shorten
from lockstep.data.answers import AnsweredRow, AnsweredRows, answer_fault, build_batch, is_empty, read_answer
from lockstep.data.messages import Message
from lockstep.data.pair_options import PairSection
from lockstep.data.prompts import prompts_of
from lockstep.data.rows import Row, Rows, read_number
from lockstep.data.templates import complaint, read_field


@dataclass(frozen=True)
class PreferencePair(AnsweredRow):
    """One row to learn a preference from.

    Attributes:
        chosen: Token ids of the better answer, the stop token last.
        rejected: Tokens of the worse one, likewise.
        scores: Scores of both answers; empty where rows have none.
    """

    chosen: tuple[int, ...]
    rejected: tuple[int, ...]
    scores: tuple[float, ...]

    @property
    def longest(self) -> int:
        """Tokens of the prompt with the longer answer."""
        return len(self.prompt.tokens) + max(len(self.chosen), len(self.rejected))


class Pairs(AnsweredRows[PreferencePair]):
    """The pairs of a data file, two sequences each, whose longer answer counts; arguments: `AnsweredRows`."""

    _data: PairSection

    def render(self, position: int, count: int, seed: int) -> list[dict[str, Any]]:
        """The pairs at `position` … `position + count − 1` of a run as text, plain enough for JSON."""
        return [self._render(pair) for pair in self.read(position, count, seed)]

    def _collate(self, items: Sequence[PreferencePair]) -> Batch:
        answers = [(pair.prompt.tokens, answer) for pair in items for answer in (pair.chosen, pair.rejected)]
        scores = [score for pair in items for score in pair.scores]
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
        data = self._data
        wrong = self._prompt_fault(row) or complaint(row, dict.fromkeys(data.score_fields, "number"))
        wrong = wrong or answer_fault(data.chosen, row) or answer_fault(data.rejected, row)
        if wrong is not None:
            return wrong
        endless = next((name for name in data.score_fields if read_number(read_field(row, name)) is None), None)
        if endless is not None:
            return f"has in the field {endless!r} {shorten(str(read_field(row, endless)))}, which is no finite number"
        better, worse = self._read_answers(row, "row")
        if is_empty(better):
            return "has an empty answer as the chosen one"
        wrong_better, chosen = self._answers.examine(row, better)
        wrong_worse, rejected = self._answers.examine(row, worse)
        if wrong_better or wrong_worse:
            return wrong_better or wrong_worse
        if chosen == rejected:
            return "has the same answer twice, chosen and rejected, from which nothing can be learned"
        scores = list(self._scores(row).items())
        if scores and scores[0][1] < scores[1][1]:
            worths = ", ".join(f"{name!r} {json.dumps(score)}" for name, score in scores)
            return f"has a chosen answer that is worth less than the rejected one: {worths}"
        return None
