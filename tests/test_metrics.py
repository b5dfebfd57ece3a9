from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lockstep.core.metrics import (
    ExplainedVariance,
    LastValue,
    Max,
    Mean,
    MetricReduction,
    Metrics,
    Min,
    Sum,
    merge_metrics,
)

NUMBERS = st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=20)


def explained(returns: list[float], errors: list[float]) -> ExplainedVariance:
    r, e = torch.tensor(returns).double(), torch.tensor(errors).double()
    return ExplainedVariance(len(returns), r.sum(), (r**2).sum(), e.sum(), (e**2).sum())


KINDS: dict[
    str, tuple[Callable[[list[float]], MetricReduction], Callable[[list[float]], float]]
] = {
    "mean": (
        lambda x: Mean(torch.tensor(x, dtype=torch.float64).sum(), len(x)),
        lambda x: sum(x) / len(x),
    ),
    "sum": (lambda x: Sum(torch.tensor(x, dtype=torch.float64).sum()), sum),
    "max": (lambda x: Max(torch.tensor(x, dtype=torch.float64).max()), max),
    "min": (lambda x: Min(min(x)), min),
    "last": (lambda x: LastValue(x[-1]), lambda x: x[-1]),
}


@pytest.mark.parametrize("kind", KINDS)
@given(x=NUMBERS, cut=st.integers(1, 19))
def test_merged_metric_equals_metric_of_all_values(kind: str, x: list[float], cut: int) -> None:
    part, whole = KINDS[kind]
    pieces = [Metrics(it=part(piece)) for piece in (x[:cut], x[cut:]) if piece]
    assert merge_metrics(pieces).floats()["it"] == pytest.approx(whole(x), rel=1e-9, abs=1e-9)


@given(
    st.lists(st.tuples(st.floats(-10, 10), st.floats(-3, 3)), min_size=2, max_size=30),
    st.integers(1, 29),
)
def test_explained_variance_is_exact_over_any_split(
    pairs: list[tuple[float, float]], cut: int
) -> None:
    returns, errors = (list(column) for column in zip(*pairs, strict=True))
    variance = torch.tensor(returns).double().var(correction=0)
    if variance < 1e-3:
        return
    expected = 1.0 - float(torch.tensor(errors).double().var(correction=0) / variance)
    halves = [explained(returns[:cut], errors[:cut]), explained(returns[cut:], errors[cut:])]
    assert halves[0].merge(halves[1]).value() == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_mean_of_nothing_and_explained_variance_of_constant_returns_are_nan() -> None:
    assert math.isnan(Mean(0.0, 0.0).value())
    assert math.isnan(ExplainedVariance(0, 0, 0, 0, 0).value())
    assert math.isnan(explained([2.0, 2.0], [1.0, 0.0]).value())
