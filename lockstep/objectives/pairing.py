"""Selects preference pairs by score (Yuan et al. 2024), with length control (Wu et al. 2024)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

PairStatus = Literal["ok", "unscored", "tie", "identical", "unfinished", "judge_pair"]
"""Outcome of choosing a pair for a row.

In order: a pair of answers to learn from; fewer than two scores; equal scores; equal answers; fewer
than two finished answers; a pair of judgments to learn from.
"""


@dataclass(frozen=True)
class PairCandidate:
    """A candidate answer for a pair.

    Attributes:
        tokens: Tokens of the answer, including the stop token.
        finished: Whether it ended before its limit.
        score: Mean of its verdicts; None if it has none.
        variance: Population variance of its verdicts; None if it has fewer than two.
    """

    tokens: tuple[int, ...]
    finished: bool
    score: float | None
    variance: float | None = None


@dataclass(frozen=True)
class AnswerPair:
    """Two answers, by their indices among a prompt's answers.

    Attributes:
        status: Outcome; only "ok" pairs are trained on.
        chosen: The better answer; None if there is no pair.
        rejected: The worse answer.
    """

    status: PairStatus
    chosen: int | None = None
    rejected: int | None = None


def choose_pair(answers: Sequence[PairCandidate], length_control: float) -> AnswerPair:
    """Chooses the preferred and the rejected answer.

    Let S be the finished answers with a score, from s_min to s_max, and ρ the length control: the
    shortest answer within ρ·(s_max − s_min) of the best is preferred, and the longest answer within
    that distance of the worst is rejected. With ρ = 0 these are the best and the worst; ties go to
    the answer whose verdicts agree most.

    Args:
        answers: Answers to one prompt.
        length_control: ρ, from 0 to below 1.

    Raises:
        ValueError: If ρ is not in [0, 1).
    """
    if not 0 <= length_control < 1:
        raise ValueError(f"length_control must be at least 0 and below 1, not {length_control}")
    scored = {index: one.score for index, one in enumerate(answers) if one.score is not None}
    usable = {index: score for index, score in scored.items() if answers[index].finished}
    if len(usable) < 2:
        return AnswerPair("unfinished" if len(scored) >= 2 else "unscored")
    best = max(usable.values())
    worst = min(usable.values())
    if best == worst:
        return AnswerPair("tie")
    slack = length_control * (best - worst)
    high = [index for index, score in usable.items() if score >= best - slack]
    low = [index for index, score in usable.items() if score <= worst + slack]

    def count_tokens(index: int) -> int:
        return len(answers[index].tokens)

    def read_variance(index: int) -> float:
        variance = answers[index].variance
        if variance is None:
            return float("inf")
        return variance

    if length_control:
        chosen = min(high, key=count_tokens)
        rejected = max(low, key=count_tokens)
    else:
        chosen = min(high, key=read_variance)
        rejected = min(low, key=read_variance)
    if answers[chosen].tokens == answers[rejected].tokens:
        return AnswerPair("identical")
    # For ρ ≥ ½ the sets can overlap, and the short answer can be the worse one.
    if usable[chosen] > usable[rejected]:
        return AnswerPair("ok", chosen, rejected)
    return AnswerPair("tie")


def balance_classes(classes: Sequence[float], room: int, share: float) -> list[int]:
    """Selects as many indices as possible, first ones first, without exceeding a class's share.

    Args:
        classes: Class of each index.
        room: Maximum number of indices.
        share: Maximum share of the selection per class; one index is always allowed.
    """
    exact = Fraction(repr(share))  # .58 of 50 is 29, not 28.999
    for total in range(min(room, len(classes)), 0, -1):
        most = max(1, int(exact * total))
        counts = Counter[float]()
        taken = list[int]()
        for index, own in enumerate(classes):
            if counts[own] < most:
                counts[own] += 1
                taken.append(index)
        if len(taken) >= total:
            return taken[:total]
    return []
