"""KTO in float64: its formula, its reference point, and where its gradient vanishes."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lockstep.objectives.kto import estimate_reference_point, kto_loss

ratios = st.floats(-20.0, 20.0)


def number(*x: float) -> Tensor:
    return torch.tensor(x, dtype=torch.float64)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


@given(ratios, st.floats(0.0, 10.0), st.floats(0.01, 1.0), st.floats(0.0, 3.0), st.floats(0.0, 3.0))
def test_kto_loss_matches_closed_form(
    ratio: float, point: float, beta: float, desired: float, undesired: float
) -> None:
    found = kto_loss(
        number(ratio, ratio), torch.tensor([True, False]), beta, point, (desired, undesired)
    )
    expected = [
        desired * (1 - sigmoid(beta * (ratio - point))),
        undesired * (1 - sigmoid(beta * (point - ratio))),
    ]
    assert found.tolist() == pytest.approx(expected, rel=1e-9, abs=1e-12)


@given(st.lists(ratios, min_size=1, max_size=8))
def test_kto_reference_point_is_mean_clamped_at_0_without_gradient(
    mismatched: list[float],
) -> None:
    column = number(*mismatched).requires_grad_()
    point = estimate_reference_point(column)
    assert point == pytest.approx(max(0.0, sum(mismatched) / len(mismatched)), abs=1e-9)
    assert isinstance(point, float)
