"""Judgements that are known to be right, and how often a judge finds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from lockstep.data.rows import DataError, Rows
from lockstep.experience.judge.asking import Conversation
from lockstep.experience.judge.build import meta_case, response_case
from lockstep.experience.judge.judge import Judge
from lockstep.experience.judge.verdicts import Winner
from lockstep.metrics import Mean, Metrics


@dataclass(frozen=True)
class KnownScore:
    """A response, and what it is worth."""

    conversation: Conversation
    response: str
    score: float


@dataclass(frozen=True)
class KnownWinner:
    """Two judgements of a response, and which one is better."""

    conversation: Conversation
    response: str
    judgements: tuple[str, str]
    winner: Winner


def read_scores(rows: Rows) -> list[KnownScore]:
    """Reads rows with `prompt`, `response` and `score`.

    Raises:
        DataError: A row lacks one of them.
    """
    return [
        KnownScore(_asked(row), str(row["response"]), _number(row["score"], where))
        for where, row in _all(rows, ("prompt", "response", "score"))
    ]


def read_winners(rows: Rows) -> list[KnownWinner]:
    """Reads rows with `prompt`, `response`, `judgement_a`, `judgement_b`, and `winner`, which is A or B.

    Raises:
        DataError: A row lacks one of them, or nobody has won.
    """
    names = ("prompt", "response", "judgement_a", "judgement_b", "winner")
    found: list[KnownWinner] = []
    for where, row in _all(rows, names):
        if row["winner"] not in ("A", "B"):
            raise DataError(f"{where}: winner is {row['winner']!r}, which is neither A nor B")
        judgements = str(row["judgement_a"]), str(row["judgement_b"])
        found.append(KnownWinner(_asked(row), str(row["response"]), judgements, cast("Winner", row["winner"])))
    return found


def judged_scores(known: Sequence[KnownScore], judge: Judge[float]) -> Metrics:
    """How often a judge says the right score, and by how much it is above it on average; no verdict is not right."""
    cases = [response_case(one.conversation, one.response, ("known", place)) for place, one in enumerate(known)]
    said = [(value, one.score) for judged, one in zip(judge(cases), known, strict=True) for value in judged.values]
    return Metrics(
        judge_exact=Mean(sum(value == score for value, score in said), len(known) * judge.rules.draws),
        judge_bias=Mean(sum(value - score for value, score in said), len(said)),
    )


def judged_winners(known: Sequence[KnownWinner], judge: Judge[Winner]) -> Metrics:
    """How often a meta-judge names the winner, asked in both orders; no verdict is not right."""
    cases = [
        meta_case(
            one.conversation, one.response, one.judgements[first], one.judgements[1 - first], ("known", place, first)
        )
        for place, one in enumerate(known)
        for first in (0, 1)
    ]
    wanted = [winner for one in known for winner in (one.winner, "B" if one.winner == "A" else "A")]
    right = sum(judged.values == [winner] for judged, winner in zip(judge(cases), wanted, strict=True))
    return Metrics(meta_judge_accuracy=Mean(right, len(cases)))


def _all(rows: Rows, names: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
    """Each row with its place, once it has all that it needs."""
    found = list(zip(map(rows.where, range(len(rows))), rows.rows(range(len(rows))), strict=True))
    for where, row in found:
        missing = [name for name in names if name not in row]
        if missing:
            raise DataError(f"{where}: lacks {', '.join(missing)}; a row of what is known has {', '.join(names)}")
    return found


def _asked(row: Mapping[str, Any]) -> Conversation:
    return ({"role": "user", "content": str(row["prompt"])},)


def _number(value: object, where: str) -> float:
    try:
        return float(str(value))
    except ValueError as error:
        raise DataError(f"{where}: score is {value!r}, which is no number") from error
