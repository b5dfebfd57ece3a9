"""Agreement of a judge with people who ranked the responses to one prompt.

People give ranks, the best lowest; a judge gives scores, the best highest. Responses that people
rank alike say nothing about a judge and are left out; a judge who scores responses alike gets what
a coin toss would: half a pair, and a correlation of 0. A measure is None where people rank no two
responses differently.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations


def tie_share(ranks: Sequence[float], scores: Sequence[float]) -> float | None:
    """Share of the pairs that people rank differently which the judge does not tell apart."""
    rights = _rights(ranks, scores)
    if rights:
        return rights.count(0.5) / len(rights)
    return None


def exact_match(ranks: Sequence[float], scores: Sequence[float]) -> float | None:
    """1 if the judge orders every pair as people do, without a tie; else 0."""
    rights = _rights(ranks, scores)
    if rights:
        return float(all(right == 1 for right in rights))
    return None


def top_is_best(ranks: Sequence[float], scores: Sequence[float], top: float) -> float | None:
    """Share of the responses with the highest score of the scale that people rank best; None if
    there are none.
    """
    best = min(ranks, default=0.0)
    found = [rank == best for rank, score in zip(ranks, scores, strict=True) if score == top]
    if found and len(set(ranks)) > 1:
        return sum(found) / len(found)
    return None


def spearman(ranks: Sequence[float], scores: Sequence[float]) -> float | None:
    """Spearman's ρ: Pearson's correlation of the ranks of people and judge, where ties share their
    mean rank.
    """
    people = _places([-rank for rank in ranks])
    judge = _places(scores)
    if not any(people):
        return None
    norm = math.sqrt(sum(a * a for a in people) * sum(b * b for b in judge))
    if norm:
        return sum(a * b for a, b in zip(people, judge, strict=True)) / norm
    return 0.0


def kendall_tau(ranks: Sequence[float], scores: Sequence[float]) -> float | None:
    """Kendall's τ_b (1945): agreeing less disagreeing pairs, over √(pairs people tell apart · pairs
    the judge does).
    """
    rights = _rights(ranks, scores)
    if not rights:
        return None
    apart = sum(a != b for a, b in combinations(scores, 2))
    if apart:
        return sum(2 * right - 1 for right in rights) / math.sqrt(len(rights) * apart)
    return 0.0


def longer_preferred(decisions: Sequence[tuple[float, int]]) -> float | None:
    """Share of the pairs of unequal length in which the longer one is preferred.

    Args:
        decisions: For each pair, 1 where the judge prefers what people do, 0 where not, ½ for a tie
            (all ones measure people themselves); and by how much the one that people prefer is
            longer than the other.
    """
    longer = [right if excess > 0 else 1 - right for right, excess in decisions if excess]
    if longer:
        return sum(longer) / len(longer)
    return None


def decide_pairs(
    ranks: Sequence[float], scores: Sequence[float]
) -> Iterator[tuple[int, int, float]]:
    """Yields, for each pair that people rank differently, the better, the other, and if the judge
    is right (½: a tie).

    Both are given by their places.
    """
    for a, b in combinations(range(len(ranks)), 2):
        if ranks[a] != ranks[b]:
            better, worse = (a, b) if ranks[a] < ranks[b] else (b, a)
            yield (
                better,
                worse,
                (1 + (scores[better] > scores[worse]) - (scores[better] < scores[worse])) / 2,
            )


def _rights(ranks: Sequence[float], scores: Sequence[float]) -> list[float]:
    return [right for _, _, right in decide_pairs(ranks, scores)]


def _places(values: Sequence[float]) -> list[float]:
    """Ranks by value, ties sharing their mean, centered at 0: (number of lower values − number of
    higher ones) / 2.
    """
    return [sum((a > b) - (a < b) for b in values) / 2 for a in values]
