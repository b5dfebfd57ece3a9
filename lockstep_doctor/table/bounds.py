"""Confidence bounds over clusters: exact ones for rates, Student's t with a correction for skewness
for other figures.

Bounds are one-sided, each with its own probability: `below`, that the truth is below the lower one,
and `above`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lockstep.report.sweeps import student

_HALVINGS = 60
_TINY = 1e-300
_DUST = 1e-13  # of a value: what rounding makes of equal numbers is no variance


@dataclass(frozen=True)
class Bounded:
    """A figure and its bounds."""

    value: float
    low: float
    high: float


def bound_rate(totals: Tensor, below: float, above: float) -> Bounded:
    """Bounds a share from hits and trials of clusters [G, 2], by the binomial tail (Clopper &
    Pearson 1934).

    There are as many independent trials as give the variance that is seen between clusters (Kish
    1965; Korn & Graubard 1998, as in `objectives.estimates.share`). Where nothing was hit there is
    no variance, and all trials count.
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
        low = _root(lambda p: 1 - _binomial_tail(fewer - 1, n, p) - below, 0.0, rate)
    else:
        low = 0.0
    return Bounded(
        rate,
        low,
        _root(lambda p: above - _binomial_tail(more, n, p), rate, 1.0) if more < n else 1.0,
    )


def mean(sums: Tensor) -> Tensor:
    """The mean over tokens from sums and counts of clusters, [G, 2] → [G]."""
    return sums[:, 0] / sums[:, 1]


def bound(
    totals: Tensor, statistic: Callable[[Tensor], Tensor], below: float, above: float
) -> Bounded:
    """Bounds a smooth function of sums over clusters, [G, K] → [G], by leaving each out once (Tukey
    1958).

    Sums of few clusters with heavy tails are skewed, and so is their t: Hall's transformation
    (1992) takes that into account, and then the bounds miss as seldom as those of a bootstrap do
    (`tests/doctor/test_doctor_statistics.py`).
    """
    value, error, skewness = _jackknife(totals, statistic)
    clusters = totals.shape[0]
    if clusters < 2:
        return Bounded(value, -math.inf, math.inf)
    low = _unskew(student(below, clusters - 1), skewness, clusters)
    high = _unskew(-student(above, clusters - 1), skewness, clusters)
    return Bounded(value, value - error * low, value - error * high)


def standard_errors(totals: Tensor, allowed: float) -> float:
    """Standard errors by which a mean over tokens [G, 2] exceeds ±`allowed`, from Student to
    normal.
    """
    value, error, _ = _jackknife(totals, mean)
    beyond = max(0.0, abs(value) - allowed)
    freedom = totals.shape[0] - 1
    if not beyond or not freedom:
        return 0.0
    t = min(beyond / max(error, _TINY), 1e150)
    far = math.sqrt(freedom * math.log1p(t**2 / freedom)) * (8 * freedom + 1) / (8 * freedom + 3)
    return math.copysign(far, value)


def _jackknife(totals: Tensor, statistic: Callable[[Tensor], Tensor]) -> tuple[float, float, float]:
    """The value, its standard error and the skewness of what clusters add to it; a single cluster
    has neither.
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


def _unskew(t: float, skewness: float, clusters: int) -> float:
    """The quantile of a t whose clusters are skewed, by the inverse of Hall's transformation."""
    if abs(skewness) < 1e-6:
        return t
    root = math.sqrt(clusters)
    return 3 * root / skewness * (math.cbrt(1 + skewness / root * (t - skewness / (6 * root))) - 1)


def _binomial_tail(k: int, n: float, p: float) -> float:
    """The chance of at most `k` hits in `n` trials, each a hit with probability `p`."""
    i = torch.arange(k + 1, dtype=torch.float64)
    ways = math.lgamma(n + 1) - torch.lgamma(i + 1) - torch.lgamma(n - i + 1)
    return float(
        (ways + i * math.log(max(p, _TINY)) + (n - i) * math.log1p(-min(p, 1 - 1e-16))).exp().sum()
    )


def _root(rising: Callable[[float], float], low: float, high: float) -> float:
    """Returns the root of an increasing function, by bisection."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) >= 0 else (middle, high)
    return high
