"""Cases with known right verdicts, and a judge's accuracy on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic

from lockstep.core.errors import shorten_text
from lockstep.core.metrics import Mean, Metrics
from lockstep.data.rows import DataError, FileRows
from lockstep.data.templates import FieldType, find_field_fault
from lockstep.judge.asking import ChatConversation
from lockstep.judge.build import meta_case, response_case
from lockstep.judge.judge import JudgeCase, LLMJudge
from lockstep.judge.verdicts import PairWinner, V
from lockstep.objectives.estimates import share

_COMPARISON = ("prompt", "response", "judgement_a", "judgement_b", "winner")


@dataclass(frozen=True)
class LabeledCase(Generic[V]):
    """A case and its right verdict."""

    case: JudgeCase
    verdict: V


def read_scores(rows: FileRows, low: float, high: float) -> list[LabeledCase[float]]:
    """Reads rows with `prompt`, `response` and `score` in `low` … `high`."""
    found: list[LabeledCase[float]] = []
    wanted: dict[str, FieldType] = {"prompt": "text", "response": "text", "score": "number"}
    for index, (where, row) in enumerate(_read_rows(rows, wanted)):
        score = float(row["score"])
        if not low <= score <= high:
            raise DataError(
                f"{where}: score is {shorten_text(str(row['score']))}, outside the judge's range "
                f"{low:g} to {high:g}; correct the row"
            )
        found.append(
            LabeledCase(
                response_case(_build_question(row), row["response"], ("known", index)), score
            )
        )
    return found


def read_winners(rows: FileRows, reasons: Callable[[str], str]) -> list[LabeledCase[PairWinner]]:
    """Reads rows with `prompt`, `response`, `judgement_a`, `judgement_b` and `winner`.

    The winner is A or B.

    Args:
        rows: Rows of a file.
        reasons: Strips the score from a judgment, as in training.

    Returns:
        Each comparison in both orders, next to each other.
    """
    found: list[LabeledCase[PairWinner]] = []
    for index, (where, row) in enumerate(_read_rows(rows, dict.fromkeys(_COMPARISON, "text"))):
        if row["winner"] not in ("A", "B"):
            raise DataError(f"{where}: winner is {row['winner']!r}, expected A or B")
        a = reasons(row["judgement_a"])
        b = reasons(row["judgement_b"])
        own: PairWinner = row["winner"]
        other: PairWinner = "B" if own == "A" else "A"
        question = _build_question(row)
        response = row["response"]
        found.append(LabeledCase(meta_case(question, response, a, b, ("known", index, 0)), own))
        found.append(LabeledCase(meta_case(question, response, b, a, ("known", index, 1)), other))
    return found


def measure_scores(known: Sequence[LabeledCase[float]], judge: LLMJudge[float]) -> Metrics:
    """Measures a judge's accuracy and mean bias; a missing verdict counts as wrong."""
    errors: list[float] = []
    exact_shares: list[float] = []
    for judged, one in zip(judge([one.case for one in known]), known, strict=True):
        errors += [value - one.verdict for value in judged.values]
        exact_shares.append(judged.values.count(one.verdict) / judge.draws)
    exact = share(exact_shares)
    return Metrics(
        judge_exact=Mean(exact.value), judge_bias=Mean(sum(errors), len(errors))
    ) + exact.build_interval_metrics("judge_exact")


def measure_winners(
    known: Sequence[LabeledCase[PairWinner]], judge: LLMJudge[PairWinner]
) -> Metrics:
    """Measures a meta-judge's accuracy over both orders; no verdict counts as wrong."""
    judged = judge([one.case for one in known])
    right = [one.values == [wanted.verdict] for one, wanted in zip(judged, known, strict=True)]
    accuracy = share(
        [(first + second) / 2 for first, second in zip(right[0::2], right[1::2], strict=True)]
    )
    return Metrics(meta_judge_accuracy=Mean(accuracy.value)) + accuracy.build_interval_metrics(
        "meta_judge_accuracy"
    )


def _read_rows(rows: FileRows, wanted: Mapping[str, FieldType]) -> list[tuple[str, dict[str, Any]]]:
    """Reads each row with its location; raises DataError if a field is missing."""
    found = list(
        zip(map(rows.name_row, range(len(rows))), rows.read_rows(range(len(rows))), strict=True)
    )
    for where, row in found:
        fault = find_field_fault(row, wanted, dict.fromkeys(wanted, "a file of known judgments"))
        if fault is not None:
            raise DataError(f"{where}: {fault}; correct the row")
    return found


def _build_question(row: Mapping[str, Any]) -> ChatConversation:
    return ({"role": "user", "content": row["prompt"]},)
