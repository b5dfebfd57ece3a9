"""Agreement of a judge with people who ranked the responses to one prompt.

People give ranks, the best lowest; a judge gives scores, the best highest. Pairs that people rank
equally are left out. A judge that scores responses equally gets the result of a coin toss: half a
pair, and a correlation of 0. A measure is None if people rank no two responses differently.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations


def tie_share(ranks: Sequence[float], scores: Sequence[float]) -> float | None:
    """Share of the pairs ranked differently by people that the judge scores equally."""
    rights = _list_pair_results(ranks, scores)
    if rights:
        return rights.count(0.5) / len(rights)
    return None


def exact_match(ranks: Sequence[float], scores: Sequence[float]) -> float | None:
    """Returns 1 if the judge orders every pair as people do, without a tie; else 0."""
    rights = _list_pair_results(ranks, scores)
    if rights:
        return float(all(right == 1 for right in rights))
    return None


def top_is_best(ranks: Sequence[float], scores: Sequence[float], top: float) -> float | None:
    """Share of top-scored responses that people rank best; None if no response has `top`."""
    best = min(ranks, default=0.0)
    found = [rank == best for rank, score in zip(ranks, scores, strict=True) if score == top]
    if found and len(set(ranks)) > 1:
        return sum(found) / len(found)
    return None


def spearman(ranks: Sequence[float], scores: Sequence[float]) -> float | None:
    """Spearman's ρ of people's and the judge's ranks; ties share their mean rank."""
    people = _center_ranks([-rank for rank in ranks])
    judge = _center_ranks(scores)
    if not any(people):
        return None
    norm = math.sqrt(sum(a * a for a in people) * sum(b * b for b in judge))
    if norm:
        return sum(a * b for a, b in zip(people, judge, strict=True)) / norm
    return 0.0


def kendall_tau(ranks: Sequence[float], scores: Sequence[float]) -> float | None:
    """Kendall's τ_b (1945): agreeing minus disagreeing pairs, normalized.

    The divisor is √(pairs ranked differently by people · pairs ranked differently by the judge).
    """
    rights = _list_pair_results(ranks, scores)
    if not rights:
        return None
    apart = sum(a != b for a, b in combinations(scores, 2))
    if apart:
        return sum(2 * right - 1 for right in rights) / math.sqrt(len(rights) * apart)
    return 0.0


def longer_preferred(decisions: Sequence[tuple[float, int]]) -> float | None:
    """Share of the pairs of unequal length in which the longer one is preferred.

    Args:
        decisions: For each pair, 1 if the judge agrees with people, 0 if not, ½ for a tie (all ones
            measure people themselves); and the length of the response that people prefer minus the
            length of the other.
    """
    longer = [right if excess > 0 else 1 - right for right, excess in decisions if excess]
    if longer:
        return sum(longer) / len(longer)
    return None


def decide_pairs(
    ranks: Sequence[float], scores: Sequence[float]
) -> Iterator[tuple[int, int, float]]:
    """Yields (better, worse, result) for each pair that people rank differently.

    The first two are indices of responses; the result is 1 if the judge agrees, 0 if not, ½ for a
    tie.
    """
    for a, b in combinations(range(len(ranks)), 2):
        if ranks[a] != ranks[b]:
            better, worse = (a, b) if ranks[a] < ranks[b] else (b, a)
            yield (
                better,
                worse,
                (1 + (scores[better] > scores[worse]) - (scores[better] < scores[worse])) / 2,
            )


def _list_pair_results(ranks: Sequence[float], scores: Sequence[float]) -> list[float]:
    return [right for _, _, right in decide_pairs(ranks, scores)]


def _center_ranks(values: Sequence[float]) -> list[float]:
    """Mean ranks centered at 0: (number of lower values − number of higher values) / 2."""
    ranks: list[float] = []
    for value in values:
        lower = sum(other < value for other in values)
        higher = sum(other > value for other in values)
        ranks.append((lower - higher) / 2)
    return ranks
