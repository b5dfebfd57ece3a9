"""Demonstrations for supervised fine-tuning: prompt, completion, stop token; completions train."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.config import DataSection
from lockstep.data import messages
from lockstep.data.answers import AnsweredRows, answer_fault, build_answer, read_answer
from lockstep.data.messages import ChatMessage
from lockstep.data.rows import DataRow
from lockstep.data.templates import fill_template, find_messages, read_field


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
