"""Metrics that carry their reduction, so that micro-batches, epochs and ranks merge exactly.

Parts may have any sizes. Values may stay tensors on a device until `floats` is called, so that no
metric makes the host wait on a hot path.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, is_dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

MetricNumber = float | Tensor


class MetricReduction(ABC):
    """A partial result that merges with others of its kind and gives one number."""

    @abstractmethod
    def merge(self, other: Any, /) -> Self:
        """Merges this part with another of the same kind."""

    @abstractmethod
    def value(self) -> float:
        """The number for all parts."""


class _SumReduction(MetricReduction):
    """A reduction whose fields are sums over all parts."""

    def merge(self, other: MetricReduction) -> Self:
        return type(self)(*map(operator.add, vars(self).values(), vars(other).values()))


@dataclass(frozen=True)
class Mean(_SumReduction):
    """total / count; NaN if count is 0."""

    total: MetricNumber
    count: MetricNumber = 1.0

    def value(self) -> float:
        if float(self.count):
            return float(self.total) / float(self.count)
        return float("nan")


@dataclass(frozen=True)
class Sum(_SumReduction):
    """A total over all parts."""

    total: MetricNumber

    def value(self) -> float:
        return float(self.total)


@dataclass(frozen=True)
class Max(MetricReduction):
    """The largest over all parts."""

    largest: MetricNumber

    def merge(self, other: Max) -> Max:
        return Max(torch.maximum(_convert_to_fp64(self.largest), _convert_to_fp64(other.largest)))

    def value(self) -> float:
        return float(self.largest)


@dataclass(frozen=True)
class Min(MetricReduction):
    """The smallest over all parts."""

    smallest: MetricNumber

    def merge(self, other: Min) -> Min:
        return Min(torch.minimum(_convert_to_fp64(self.smallest), _convert_to_fp64(other.smallest)))

    def value(self) -> float:
        return float(self.smallest)


@dataclass(frozen=True)
class LastValue(MetricReduction):
    """The newest value, for settings such as the learning rate."""

    newest: MetricNumber

    def merge(self, other: LastValue) -> LastValue:
        return other

    def value(self) -> float:
        return float(self.newest)


@dataclass(frozen=True)
class ExplainedVariance(_SumReduction):
    """1 − Var(R−V) / Var(R) over all tokens, from sums, so that it is exact over any split.

    It does not show whether values are aligned with their states: a critic that sees the action
    explains *more*.
    """

    count: MetricNumber
    returns: MetricNumber
    returns_squared: MetricNumber
    errors: MetricNumber
    errors_squared: MetricNumber

    def value(self) -> float:
        n = float(self.count)
        if not n:
            return float("nan")
        variance = float(self.returns_squared) / n - (float(self.returns) / n) ** 2
        residual = float(self.errors_squared) / n - (float(self.errors) / n) ** 2
        if variance > 0:
            return 1.0 - residual / variance
        return float("nan")


@dataclass(frozen=True)
class StandardDeviation(_SumReduction):
    """√(Var x), of all values of all parts, from sums."""

    count: MetricNumber
    total: MetricNumber
    squares: MetricNumber

    def value(self) -> float:
        n = float(self.count)
        if n:
            return max(0.0, float(self.squares) / n - (float(self.total) / n) ** 2) ** 0.5
        return float("nan")


class Metrics(dict[str, MetricReduction]):
    """Named reductions. `a + b` merges common names and keeps the rest."""

    def __add__(self, other: Mapping[str, MetricReduction]) -> Metrics:
        merged = Metrics(self)
        for name, reduction in other.items():
            merged[name] = merged[name].merge(reduction) if name in merged else reduction
        return merged

    def with_prefix(self, prefix: str) -> Metrics:
        """The same metrics as `prefix/name`."""
        return Metrics({f"{prefix}/{name}": reduction for name, reduction in self.items()})

    def floats(self) -> dict[str, float]:
        """Every metric as a number, never −0; the only place that waits for a device, once."""
        return {name: reduction.value() + 0.0 for name, reduction in fetch_metrics(self).items()}


def fetch_metrics(metrics: Mapping[str, MetricReduction]) -> Mapping[str, MetricReduction]:
    """The same metrics with their numbers on the host, moved in one transfer."""
    there = dict[str, list[str]]()
    numbers = list[Tensor]()
    for name, reduction in metrics.items():
        held = vars(reduction) if is_dataclass(reduction) else {}
        found = {
            part: x for part, x in held.items() if isinstance(x, Tensor) and x.device.type != "cpu"
        }
        there[name] = list(found)
        numbers += [x.double() for x in found.values()]
    if not numbers:
        return metrics
    here = iter(torch.stack(numbers).tolist())
    fetched = dict(metrics)
    for name, reduction in metrics.items():
        if there[name] and is_dataclass(reduction):
            fetched[name] = replace(reduction, **{part: next(here) for part in there[name]})
    return fetched


def merge_metrics(parts: Iterable[Mapping[str, MetricReduction]]) -> Metrics:
    """Merges metrics of micro-batches, epochs or ranks, in order."""
    total = Metrics()
    for part in parts:
        total = total + part
    return total


def _convert_to_fp64(number: MetricNumber) -> Tensor:
    """Converts to fp64 on the number's device, without rounding or a device sync."""
    return torch.as_tensor(number, dtype=torch.float64)
