"""Estimates of a model's accuracy from several responses per question, with their uncertainty.

An estimate is a mean over questions of one number per question. For pass@k and majority@k that
number is an average over *all* subsets of k of the question's n responses: unbiased for k fresh
responses, for any n. Subsets are counted in integers and divided once, so rounding loses nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from statistics import NormalDist

import torch

from lockstep.core.metrics import LastValue, Metrics

_Z95 = NormalDist().inv_cdf(0.975)


@dataclass(frozen=True)
class MeanEstimate:
    """A mean over questions with its 95 % interval.

    Attributes:
        value: The mean; NaN if there are no questions.
        low: Lower end of the interval.
        high: Upper end.
        questions: Number of questions.
    """

    value: float
    low: float
    high: float
    questions: int

    def build_interval_metrics(self, name: str) -> Metrics:
        """The interval as metrics: `name_low` and `name_high`."""
        return Metrics({f"{name}_low": LastValue(self.low), f"{name}_high": LastValue(self.high)})


def pass_at_k(n: int, right: int, k: int) -> float:
    """Share of k-subsets of `n` responses that hold one of the `right` correct responses.

    1 − C(n − c, k) / C(n, k) (Chen et al. 2021, eq. 1)

    Raises:
        ValueError: There are fewer than k responses.
    """
    _require_responses(n, k)
    subsets = math.comb(n, k)
    return (subsets - math.comb(n - right, k)) / subsets


@lru_cache(maxsize=1 << 16)
def majority_at_k(right: int, wrong: tuple[int, ...], silent: int, k: int) -> float:
    """Share of k-subsets in which the right answer has the most votes; t tied answers get 1/t each.

    Args:
        right: Responses with the right answer.
        wrong: Responses with each wrong answer.
        silent: Responses without an answer, which have no vote; a subset without votes counts as
            wrong.
        k: Size of a subset.

    Raises:
        ValueError: There are fewer than k responses.
    """
    n = right + sum(wrong) + silent
    _require_responses(n, k)
    won = Fraction(0)
    for votes in range(1, min(right, k) + 1):
        chosen = math.comb(right, votes)
        for (drawn, ties), ways in _count_minorities(wrong, votes, k - votes).items():
            won += Fraction(chosen * ways * math.comb(silent, k - votes - drawn), ties + 1)
    return float(won / math.comb(n, k))


def _count_minorities(sizes: Sequence[int], most: int, limit: int) -> Counter[tuple[int, int]]:
    """Counts draws of at most `limit` responses by (responses drawn, answers with `most` votes).

    Args:
        sizes: Number of responses with each answer.
        most: Votes of the right answer, the maximum for each other answer.
        limit: Number of responses left to draw.
    """
    ways = Counter({(0, 0): 1})
    for size in sizes:
        wider: Counter[tuple[int, int]] = Counter()
        for (drawn, ties), count in ways.items():
            for more in range(min(size, most, limit - drawn) + 1):
                wider[drawn + more, ties + (more == most)] += count * math.comb(size, more)
        ways = wider
    return ways


def share(values: Sequence[float]) -> MeanEstimate:
    """The mean of one number in [0, 1] per question, with a score interval that stays in [0, 1].

    Wilson's interval (1927) at the sample size that a simple random sample would need for the same
    variance, as for surveys by clusters (Kish 1965; Korn & Graubard 1998): n* = p (1 − p) / (s² /
    n). The question is the cluster, so responses to one question never count as independent. With
    one response per question n* = n, which gives Wilson's own interval. If all questions agree, the
    variance is 0 and n* = n, its minimum.
    """
    if not values:
        return _build_empty_estimate()
    column = torch.tensor(values, dtype=torch.float64)
    p = float(column.mean())
    variance = float(column.var(correction=0))
    n = len(values)
    # rounding error is not variance
    size = n * p * (1 - p) / variance if min(values) < max(values) else float(n)
    center = (p + _Z95**2 / (2 * size)) / (1 + _Z95**2 / size)
    half = _Z95 / (1 + _Z95**2 / size) * math.sqrt(p * (1 - p) / size + (_Z95 / (2 * size)) ** 2)
    return MeanEstimate(p, max(0.0, center - half), min(1.0, center + half), n)


def mean(values: Sequence[float]) -> MeanEstimate:
    """The mean of one number per question, ± 1.96 standard errors (NaN for a single question)."""
    if not values:
        return _build_empty_estimate()
    column = torch.tensor(values, dtype=torch.float64)
    if len(values) > 1:
        half = _Z95 * float(column.std()) / math.sqrt(len(values))
    else:
        half = math.nan
    return MeanEstimate(
        float(column.mean()), float(column.mean()) - half, float(column.mean()) + half, len(values)
    )


def _build_empty_estimate() -> MeanEstimate:
    return MeanEstimate(math.nan, math.nan, math.nan, 0)


def _require_responses(n: int, k: int) -> None:
    if not 1 <= k <= n:
        raise ValueError(f"an estimate for k={k} needs at least k responses, but got {n}")
