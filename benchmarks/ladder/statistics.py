"""Statistics over few seeds: the interquartile mean with bootstrap bands (Agarwal et al. 2021)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 10_000
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Band:
    """An estimate with its 95 % bootstrap interval over seeds."""

    middle: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.middle:.3f} [{self.low:.3f}, {self.high:.3f}]"


def iqm(values_RS: Floats) -> Floats:
    """Mean of the middle half along the last axis; where a quarter of the values is no whole
    number, by parts.

    With S values each carries weight 1/S, and the lowest and the highest quarter of the weight are
    cut off.
    """
    size = values_RS.shape[-1]
    edges = np.arange(size + 1) / size
    inside = np.clip(edges[1:], 0.25, 0.75) - np.clip(edges[:-1], 0.25, 0.75)
    return np.sort(values_RS, axis=-1) @ inside / 0.5


def band(values: Sequence[float], of: Callable[[Floats], Floats] = iqm) -> Band:
    """The interquartile mean of seeds and its band; the resamples are the same in every call."""
    values_S = np.asarray(values, dtype=np.float64)
    picks = np.random.default_rng(0).integers(len(values_S), size=(RESAMPLES, len(values_S)))
    low, high = np.quantile(of(values_S[picks]), [0.025, 0.975])
    return Band(float(of(values_S[None])[0]), float(low), float(high))


def difference(better: Sequence[float], worse: Sequence[float]) -> Band:
    """Band of the interquartile mean of seed-wise differences: both arms begin with the same warm
    start.
    """
    return band([one - other for one, other in zip(better, worse, strict=True)])
