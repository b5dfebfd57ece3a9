"""Cases with known right judgements, and a judge's accuracy on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from lockstep.core.errors import shorten
from lockstep.core.metrics import Mean, Metrics
from lockstep.data.rows import DataError, Rows
from lockstep.data.templates import FieldType, complaint
from lockstep.judge.asking import Conversation
from lockstep.judge.build import meta_case, response_case
from lockstep.judge.judge import Judge
from lockstep.judge.verdicts import Winner
from lockstep.objectives.estimates import share


@dataclass(frozen=True)
class KnownScore:
    """A response and its right score."""

    conversation: Conversation
    response: str
    score: float


@dataclass(frozen=True)
class KnownWinner:
    """Two judgements of a response, and the better one."""

    conversation: Conversation
    response: str
    judgements: tuple[str, str]
    winner: Winner


def read_scores(rows: Rows, scale: tuple[float, float]) -> list[KnownScore]:
    """Reads rows with `prompt`, `response` and `score`.

    Args:
        rows: Rows of a file.
        scale: The lowest and the highest score that a judge can give.

    Raises:
        DataError: A row lacks one of them, or has another score.
    """
    return [
        KnownScore(_build_question(row), row["response"], _score(row["score"], scale, where))
        for where, row in _all(rows, {"prompt": "text", "response": "text", "score": "number"})
    ]


def read_winners(rows: Rows) -> list[KnownWinner]:
    """Reads rows with `prompt`, `response`, `judgement_a`, `judgement_b`, and `winner`, which is A or B.

    Raises:
        DataError: A row lacks one of them, or has no winner.
    """
    found: list[KnownWinner] = []
    for where, row in _all(rows, dict.fromkeys(("prompt", "response", "judgement_a", "judgement_b", "winner"), "text")):
        if row["winner"] not in ("A", "B"):
            raise DataError(f"{where}: winner is {row['winner']!r}, which is neither A nor B")
        judgements = row["judgement_a"], row["judgement_b"]
        found.append(KnownWinner(_build_question(row), row["response"], judgements, cast("Winner", row["winner"])))
    return found


def measure_scores(known: Sequence[KnownScore], judge: Judge[float]) -> Metrics:
    """Measures the share of right scores of a judge, and its mean bias; a missing verdict counts as wrong."""
    cases = [response_case(one.conversation, one.response, ("known", place)) for place, one in enumerate(known)]
    found = list(zip(judge(cases), known, strict=True))
    off = [value - one.score for judged, one in found for value in judged.values]
    exact = share([sum(value == one.score for value in judged.values) / judge.draws for judged, one in found])
    return Metrics(judge_exact=Mean(exact.value), judge_bias=Mean(sum(off), len(off))) + exact.ends("judge_exact")


def measure_winners(known: Sequence[KnownWinner], judge: Judge[Winner], reasons: Callable[[str], str]) -> Metrics:
    """Measures the share of right winners of a meta-judge, asked in both orders; a missing verdict counts as wrong.

    Args:
        known: Known judgements.
        judge: The meta-judge.
        reasons: Strips the score from a judgement, as in training.
    """
    cases = [
        meta_case(one.conversation, one.response, said[first], said[1 - first], ("known", place, first))
        for place, one in enumerate(known)
        for said in [[reasons(judgement) for judgement in one.judgements]]
        for first in (0, 1)
    ]
    wanted = [winner for one in known for winner in (one.winner, "B" if one.winner == "A" else "A")]
    right = [judged.values == [winner] for judged, winner in zip(judge(cases), wanted, strict=True)]
    accuracy = share([(first + second) / 2 for first, second in zip(right[0::2], right[1::2], strict=True)])
    return Metrics(meta_judge_accuracy=Mean(accuracy.value)) + accuracy.ends("meta_judge_accuracy")


def _all(rows: Rows, wanted: Mapping[str, FieldType]) -> list[tuple[str, dict[str, Any]]]:
    """Reads each row with its location, and checks its fields."""
    found = list(zip(map(rows.where, range(len(rows))), rows.rows(range(len(rows))), strict=True))
    for where, row in found:
        fault = complaint(row, wanted, dict.fromkeys(wanted, "a file of known judgements"))
        if fault is not None:
            raise DataError(f"{where}: {fault}; correct the row")
    return found


def _build_question(row: Mapping[str, Any]) -> Conversation:
    return ({"role": "user", "content": row["prompt"]},)


def _score(value: object, scale: tuple[float, float], where: str) -> float:
    score, (low, high) = float(str(value)), scale
    if not low <= score <= high:
        raise DataError(
            f"{where}: score is {shorten(str(value))}, but the judge's scores go from {low:g} to {high:g}; correct the "
            "row"
        )
    return score
