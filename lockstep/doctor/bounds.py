"""Confidence bounds: exact ones for rates, a bootstrap over clusters, Student's t, and multiple tests.

What can be bounded knows its value and, for any level, a bound on either side; and how surely it is on this or that
side of a limit, as p-values. A p-value is the least level at which the bound still lies on that side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Protocol

import torch
from torch import Tensor

from lockstep import keyed

_LEAST_RESAMPLES = 2000
_TAIL = 10  # resamples that lie beyond a bound, so that chance does not place it
_MOST_NUMBERS = 1 << 21  # drawn for one bootstrap: beyond it fewer resamples
_NUMBERS_AT_ONCE = 1 << 18
_MOST_TERMS = 100_000
_HALVINGS = 80
_FARTHEST = 1e6  # standard errors, for a bound
_TINY = 1e-300


class Bounded(Protocol):
    """A figure with bounds."""

    @property
    def value(self) -> float: ...

    def lower(self, level: float) -> float:
        """The truth is below it with probability `level` at most."""
        ...

    def upper(self, level: float) -> float:
        """The truth is above it with probability `level` at most."""
        ...

    def p_reaches(self, limit: float) -> float:
        """Against the truth being `limit` or more: small, if it is surely less."""
        ...

    def p_stays(self, limit: float) -> float:
        """Against the truth being `limit` or less: small, if it is surely more."""
        ...


@dataclass(frozen=True)
class Rate:
    """`hits` of `trials`, which may be fractions; exact bounds (Clopper & Pearson 1934).

    Attributes:
        hits: What happened.
        trials: Out of how many, independent of each other.
    """

    hits: float
    trials: float

    @classmethod
    def of(cls, totals: Tensor) -> Rate:
        """Hits and trials of clusters [G, 2]: as many independent trials as give the variance seen between clusters.

        Kish 1965; Korn & Graubard 1998, as in `objectives.estimates.share`. Where nothing was hit there is no variance
        to go by, and all trials count.
        """
        hits, trials = totals.unbind(1)
        clusters, n = trials.numel(), float(trials.sum())
        rate = float(hits.sum()) / n
        if clusters < 2 or not 0 < rate < 1:
            return cls(rate * n, n)
        variance = float((hits - rate * trials).square().sum()) * clusters / (clusters - 1) / n**2
        shrunk = min(1.0, rate * (1 - rate) / n / max(variance, _TINY))
        return cls(rate * n * shrunk, n * shrunk)

    @property
    def value(self) -> float:
        return self.hits / self.trials

    def lower(self, level: float) -> float:
        return _root(lambda rate: self.p_stays(rate) - level, 0.0, self.value)

    def upper(self, level: float) -> float:
        return _root(lambda rate: level - self.p_reaches(rate), self.value, 1.0)

    def p_reaches(self, limit: float) -> float:
        return beta_tail(self.trials - self.hits, self.hits + 1, 1 - limit)

    def p_stays(self, limit: float) -> float:
        return beta_tail(self.hits, self.trials - self.hits + 1, limit)


@dataclass(frozen=True)
class Student:
    """An estimate with a standard error over G clusters, by Student's distribution with G − 1 degrees of freedom."""

    value: float
    error: float
    clusters: int

    @classmethod
    def jackknife(cls, totals: Tensor, statistic: Callable[[Tensor], Tensor]) -> Student:
        """Estimates a smooth function of sums over clusters, [G, K] → [G], leaving each out once (Tukey 1958)."""
        whole, clusters = totals.sum(0, keepdim=True), totals.shape[0]
        value = float(statistic(whole))
        if clusters < 2:
            return cls(value, math.inf, clusters)
        without = statistic(whole - totals)
        error = math.sqrt(float((without - without.mean()).square().sum()) * (clusters - 1) / clusters)
        return cls(value, error, clusters)

    def lower(self, level: float) -> float:
        return _root(lambda limit: self.p_stays(limit) - level, *self._reach(-1))

    def upper(self, level: float) -> float:
        return _root(lambda limit: level - self.p_reaches(limit), *self._reach(1))

    def p_reaches(self, limit: float) -> float:
        return self._p(limit - self.value)

    def p_stays(self, limit: float) -> float:
        return self._p(self.value - limit)

    @property
    def z(self) -> float:
        """Normal quantile with the same p-value."""
        p = max(self._p(abs(self.value)), _TINY)
        return math.copysign(-NormalDist().inv_cdf(p), self.value) if self.value else 0.0

    def _p(self, distance: float) -> float:
        """Returns the one-sided p-value of a distance."""
        if self.clusters < 2 or not self.error < math.inf:
            return 1.0
        if self.error == 0:
            return float(distance <= 0)
        t, freedom = distance / self.error, self.clusters - 1
        tail = beta_tail(freedom / 2, 0.5, freedom / (freedom + t * t)) / 2
        return tail if t > 0 else 1 - tail

    def _reach(self, side: int) -> tuple[float, float]:
        if not self.error < math.inf or self.clusters < 2:
            return side * math.inf, side * math.inf
        far = self.value + side * _FARTHEST * self.error
        return min(self.value, far), max(self.value, far)


@dataclass(frozen=True)
class Bootstrap:
    """A mean over tokens, from resampling whole clusters, studentised.

    Each resample's mean is measured in its own standard errors, and the bounds go back from there. Where clusters are
    few and skewed, this misses less often than the bias-corrected percentiles do (DiCiccio & Efron 1996, section 4; and
    it can reach beyond what was seen).

    Attributes:
        value: The mean.
        error: Its standard error over clusters.
        t: Of each resample, its distance from `value` in its own standard errors, rising [R].
    """

    value: float
    error: float
    t: Tensor

    @classmethod
    def of(cls, totals: Tensor, level: float) -> Bootstrap:
        """Resamples sums and counts of clusters [G, 2], as often as bounds of `level` need."""
        clusters, value = totals.shape[0], float(totals[:, 0].sum() / totals[:, 1].sum())
        if clusters < 2:
            return cls(value, 1.0, torch.tensor([-math.inf, math.inf]))
        products = _products(totals, value)
        resamples = max(_LEAST_RESAMPLES, min(math.ceil(_TAIL / level), _MOST_NUMBERS // clusters))
        dust = 1e-14 * abs(value)  # what rounding makes of equal numbers is no variance
        away, errors = _ratio(_resample(products, resamples), clusters, dust)
        _, error = _ratio(products.sum(0, keepdim=True), clusters, dust)
        # A resample of one cluster again and again has no error: it is as far away as can be, on its side.
        t = torch.where(errors > 0, away / errors, torch.where(away.abs() <= dust, 0.0, away * math.inf))
        return cls(value, float(error), t.sort().values)

    def lower(self, level: float) -> float:
        return self._bound(self.t.numel() - 1 - self._beyond(level))

    def upper(self, level: float) -> float:
        return self._bound(self._beyond(level))

    def p_reaches(self, limit: float) -> float:
        return self._p(self.t <= self._distance(limit), limit > self.value)

    def p_stays(self, limit: float) -> float:
        return self._p(self.t >= self._distance(limit), limit < self.value)

    def _beyond(self, level: float) -> int:
        return max(0, math.floor(level * (self.t.numel() + 1)) - 1)

    def _bound(self, rank: int) -> float:
        return self.value - float(self.t[rank]) * self.error if self.error else self.value

    def _distance(self, limit: float) -> float:
        return (self.value - limit) / self.error if self.error else 0.0

    def _p(self, beyond_R: Tensor, clear: bool) -> float:
        if not self.error:
            return 0.0 if clear else 1.0
        return (int(beyond_R.sum()) + 1) / (self.t.numel() + 1)


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values of tests made together: at any level, a false rejection is no likelier than that (Holm 1979)."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        highest = max(highest, min(1.0, p_values[i] * (len(order) - rank)))
        adjusted[i] = highest
    return adjusted


def beta_tail(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function I_x(a, b): of a Beta(a, b) variable, P(≤ x).

    By its continued fraction (DLMF 8.17.22), evaluated from the front (Lentz 1976); about √max(a, b) terms.
    """
    if x <= 0 or x >= 1 or a <= 0 or b <= 0:
        return 1.0 if x >= 1 or a <= 0 < x else 0.0
    if x > (a + 1) / (a + b + 2):
        return 1 - beta_tail(b, a, 1 - x)
    fraction, c, d = 1.0, 1.0, 0.0
    for term in range(1, _MOST_TERMS):
        m = term // 2
        if term % 2:
            step = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            step = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1 / (1 + step * d or _TINY)
        c = 1 + step / c or _TINY
        fraction *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_front) / (a * fraction)


def _products(totals: Tensor, value: float) -> Tensor:
    """Returns the terms of the mean and its standard error, [G, 5]: s, n, s², s·n, n²; s is a cluster's excess."""
    sums, n = totals.unbind(1)
    s = sums - value * n
    return torch.stack([s, n, s * s, s * n, n * n], 1)


def _ratio(sums: Tensor, clusters: int, dust: float) -> tuple[Tensor, Tensor]:
    """Mean excess and its standard error over clusters from sums of `_products`, [R, 5]. Returns two [R]."""
    s, n, ss, sn, nn = sums.unbind(1)
    excess = s / n
    variance = (ss - 2 * excess * sn + excess.square() * nn) * (clusters / (clusters - 1))
    return excess, torch.where(variance > dust**2 * nn, variance, 0.0).sqrt() / n


def _resample(rows_GK: Tensor, resamples: int) -> Tensor:
    """Sums over G rows that are drawn with replacement, `resamples` times. Returns [R, K]."""
    clusters = rows_GK.shape[0]
    block = max(1, _NUMBERS_AT_ONCE // clusters)
    name, sums = torch.tensor([keyed.key("bootstrap", clusters)]), []
    for start in range(0, resamples, block):
        rows = min(block, resamples - start)
        counters = torch.arange(start * clusters, (start + rows) * clusters)
        drawn = (keyed.uniforms(name, counters)[0] * clusters).long().view(rows, clusters)
        times = rows_GK.new_zeros(rows, clusters).scatter_add_(1, drawn, rows_GK.new_ones(rows, clusters))
        sums.append(times @ rows_GK)
    return torch.cat(sums)


def _root(rising: Callable[[float], float], low: float, high: float) -> float:
    """Returns the root of an increasing function, by bisection."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) >= 0 else (middle, high)
    return high
