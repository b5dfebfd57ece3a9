"""Pairs of answers to one prompt, chosen and rejected, for preference learning."""

from __future__ import annotations

from collections.abc import Sequence
from os.path import commonprefix
from typing import Any

from lockstep.data.answers import AnsweredRows, answer_fault, is_empty, read_answer
from lockstep.data.files import JoinedRows
from lockstep.data.messages import ChatMessage
from lockstep.data.pair_options import PairSection
from lockstep.data.rows import DataRow, FileRows, RowsPart
from lockstep.data.templates import find_field_fault, find_messages, read_field


class SplitPairs(JoinedRows):
    """Pairs of texts that begin with their prompt: their longest common beginning in words."""

    def __init__(self, rows: FileRows) -> None:
        super().__init__([rows], None)
        self.share = rows.share

    @property
    def parts(self) -> tuple[RowsPart, ...]:
        return self._opened[0].parts

    def read_rows(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        return list(map(_split_pair, super().read_rows(indices)))


def _split_pair(row: dict[str, Any]) -> dict[str, Any]:
    chosen = row.get("chosen")
    rejected = row.get("rejected")
    if not isinstance(chosen, str) or not isinstance(rejected, str):
        return row
    prompt = commonprefix([chosen, rejected]).rpartition(" ")[0]  # noqa: RUF071
    length = len(prompt)
    return {**row, "prompt": prompt, "chosen": chosen[length:], "rejected": rejected[length:]}


class PairRows(AnsweredRows):
    """The pairs of a data file, two sequences each; the longer answer counts for limits.

    Arguments: `AnsweredRows`.
    """

    _data: PairSection

    def render_pairs(self, position: int, count: int, seed: int) -> list[dict[str, Any]]:
        """The pairs at `position` … `position + count − 1` of a run, as text for JSON."""
        rendered: list[dict[str, Any]] = []
        for pair in self.read_at(position, count, seed):
            record: dict[str, Any] = {"id": pair.prompt.id, "prompt": pair.prompt.text}
            for name, ids in zip(("chosen", "rejected"), pair.answers, strict=True):
                record[name] = self._tokenizer.decode(list(ids), skip_special_tokens=True)
            record |= zip(("chosen_score", "rejected_score"), pair.scores, strict=False)
            rendered.append(record)
        return rendered

    def _read_answers(self, row: DataRow, where: str) -> tuple[ChatMessage, ChatMessage]:
        return read_answer(self._data.chosen, row, where), read_answer(
            self._data.rejected, row, where
        )

    def _read_scores(self, row: DataRow) -> tuple[float, ...]:
        return tuple(float(read_field(row, name)) for name in self._data.score_fields)

    def _find_row_fault(self, row: DataRow) -> str | None:
        data = self._data
        wrong = self._prompt_fault(row) or find_field_fault(
            row, dict.fromkeys(data.score_fields, "number")
        )
        wrong = wrong or answer_fault(data.chosen, row) or answer_fault(data.rejected, row)
        if wrong is not None:
            return wrong
        talks = [find_messages(row, template) for template in data.completion_templates.values()]
        before = [read_field(row, name)[:-1] for name in talks if name]
        if len(before) > 1 and before[0] != before[1]:
            return f"has different messages before the last in {talks[0]!r} and {talks[1]!r}"
        better, worse = self._read_answers(row, "row")
        if is_empty(better):
            return "has an empty chosen answer"
        wrong_better, chosen = self._answers.examine_answer(row, better)
        wrong_worse, rejected = self._answers.examine_answer(row, worse)
        if wrong_better or wrong_worse:
            return wrong_better or wrong_worse
        if chosen == rejected:
            return "has the same chosen and rejected answer, so nothing can be learned from it"
        scores = self._read_scores(row)
        if scores and scores[0] < scores[1]:
            worths = ", ".join(
                f"{name!r} {score}" for name, score in zip(data.score_fields, scores, strict=True)
            )
            return f"has a chosen answer with a lower score than the rejected answer: {worths}"
        return None
