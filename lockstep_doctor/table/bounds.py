"""Confidence bounds over clusters: exact bounds for rates, skewness-corrected Student's t for other
figures.

Bounds are one-sided: `below` is the probability that the truth is below the lower bound, `above`
that it is above the upper one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lockstep.report.sweeps import student_quantile

_HALVINGS = 60
_TINY = 1e-300
_DUST = 1e-13  # relative spread below which values count as equal up to rounding


@dataclass(frozen=True)
class FigureBounds:
    """A figure and its bounds."""

    value: float
    low: float
    high: float


def bound_rate(totals: Tensor, below: float, above: float) -> FigureBounds:
    """Bounds a share from hits and trials of clusters [G, 2], by the binomial tail (Clopper &
    Pearson 1934).

    The number of independent trials is the effective sample size that matches the variance between
    clusters (Kish 1965; Korn & Graubard 1998, as in `objectives.estimates.share`). Without hits all
    trials count.
    """
    hits_G, trials_G = totals.unbind(1)
    clusters = trials_G.numel()
    n = float(trials_G.sum())
    rate = float(hits_G.sum()) / n
    if clusters > 1 and 0 < rate < 1:
        variance = (
            float((hits_G - rate * trials_G).square().sum()) * clusters / (clusters - 1) / n**2
        )
        n *= min(1.0, rate * (1 - rate) / n / max(variance, _TINY))
    fewer = math.floor(rate * n + 1e-9)
    more = math.ceil(rate * n - 1e-9)
    if fewer:
        low = _find_root(lambda p: 1 - _binomial_tail(fewer - 1, n, p) - below, 0.0, rate)
    else:
        low = 0.0
    return FigureBounds(
        rate,
        low,
        _find_root(lambda p: above - _binomial_tail(more, n, p), rate, 1.0) if more < n else 1.0,
    )


def cluster_mean(sums: Tensor) -> Tensor:
    """The mean over tokens from sums and counts of clusters, [G, 2] → [G]."""
    return sums[:, 0] / sums[:, 1]


def bound_statistic(
    totals: Tensor, statistic: Callable[[Tensor], Tensor], below: float, above: float
) -> FigureBounds:
    """Bounds a smooth function of sums over clusters, [G, K] → [G], by the jackknife (Tukey 1958).

    Sums of few heavy-tailed clusters are skewed, and so is their t. Hall's transformation (1992)
    corrects for that; the bounds then miss as rarely as bootstrap bounds
    (`tests/doctor/test_doctor_statistics.py`).
    """
    value, error, skewness = _jackknife(totals, statistic)
    clusters = totals.shape[0]
    if clusters < 2:
        return FigureBounds(value, -math.inf, math.inf)
    low = _unskew_quantile(student_quantile(below, clusters - 1), skewness, clusters)
    high = _unskew_quantile(-student_quantile(above, clusters - 1), skewness, clusters)
    return FigureBounds(value, value - error * low, value - error * high)


def standard_errors(totals: Tensor, allowed: float) -> float:
    """Number of standard errors by which a mean over tokens [G, 2] exceeds ±`allowed`, converted
    from Student's t to a normal z.
    """
    value, error, _ = _jackknife(totals, cluster_mean)
    beyond = max(0.0, abs(value) - allowed)
    freedom = totals.shape[0] - 1
    if not beyond or not freedom:
        return 0.0
    t = min(beyond / max(error, _TINY), 1e150)
    far = math.sqrt(freedom * math.log1p(t**2 / freedom)) * (8 * freedom + 1) / (8 * freedom + 3)
    return math.copysign(far, value)


def _jackknife(totals: Tensor, statistic: Callable[[Tensor], Tensor]) -> tuple[float, float, float]:
    """The value, its standard error and the skewness of cluster contributions; both are 0 for a
    single cluster.
    """
    whole = totals.sum(0, keepdim=True)
    clusters = totals.shape[0]
    value = float(statistic(whole))
    if clusters < 2:
        return value, 0.0, 0.0
    without = statistic(whole - totals)
    share = without.mean() - without
    spread = float(share.square().mean().sqrt())
    if spread <= _DUST * abs(value) / clusters:
        return value, 0.0, 0.0
    return value, spread * math.sqrt(clusters - 1), float((share / spread).pow(3).mean())


def _unskew_quantile(t: float, skewness: float, clusters: int) -> float:
    """A quantile of t corrected for skewness, by the inverse of Hall's transformation."""
    if abs(skewness) < 1e-6:
        return t
    root = math.sqrt(clusters)
    return 3 * root / skewness * (math.cbrt(1 + skewness / root * (t - skewness / (6 * root))) - 1)


def _binomial_tail(k: int, n: float, p: float) -> float:
    """The probability of at most `k` hits in `n` trials with hit probability `p`."""
    i = torch.arange(k + 1, dtype=torch.float64)
    ways = math.lgamma(n + 1) - torch.lgamma(i + 1) - torch.lgamma(n - i + 1)
    return float(
        (ways + i * math.log(max(p, _TINY)) + (n - i) * math.log1p(-min(p, 1 - 1e-16))).exp().sum()
    )


def _find_root(rising: Callable[[float], float], low: float, high: float) -> float:
    """Returns the root of an increasing function, by bisection."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) >= 0 else (middle, high)
    return high
