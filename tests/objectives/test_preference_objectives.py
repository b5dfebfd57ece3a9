"""Losses over pairs in float64: closed forms, other ways to write them, and what their gradients
push.
"""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Bernoulli, kl_divergence

from lockstep.objectives.preference import (
    conservative_dpo,
    dpo_loss,
    dpo_scaled_by_scores,
    ipo_loss,
    log_odds,
    odds_ratio,
    robust_dpo,
    rpo_backward_kl,
    rpo_forward_kl,
    rpo_squared,
    simpo_loss,
)

gaps = st.floats(-30.0, 30.0)
betas = st.floats(0.01, 1.0)  # torch takes a probability of 1 for certain


def number(x: float) -> Tensor:
    return torch.tensor([x], dtype=torch.float64)


@given(gaps, betas, st.floats(-5.0, 5.0))
def test_dpo_ipo_and_rpo_losses_match_closed_forms(gap: float, beta: float, scores: float) -> None:
    p = 1 / (1 + math.exp(-beta * gap))
    formulas = [
        (dpo_loss(number(gap), beta), -math.log(p)),
        (ipo_loss(number(gap), beta), (gap - 0.5 / beta) ** 2),
        (dpo_scaled_by_scores(number(gap), beta, number(scores)), -abs(scores) * math.log(p)),
        (rpo_squared(number(gap), beta, number(scores)), (beta * gap - scores) ** 2),
    ]
    for found, value in formulas:
        assert found.item() == pytest.approx(value, rel=1e-9, abs=1e-12)
    wanted, held = (Bernoulli(logits=number(x)) for x in (scores, beta * gap))
    torch.testing.assert_close(
        rpo_backward_kl(number(gap), beta, number(scores)), kl_divergence(wanted, held)
    )
    torch.testing.assert_close(
        rpo_forward_kl(number(gap), beta, number(scores)), kl_divergence(held, wanted)
    )


flips = st.floats(0.0, 0.45)


@given(gaps, betas, flips)
def test_conservative_dpo_mixes_both_labels_and_robust_dpo_removes_label_noise(
    gap: float, beta: float, flipped: float
) -> None:
    right, wrong = (-math.log(1 / (1 + math.exp(-side * beta * gap))) for side in (1, -1))
    mixed = conservative_dpo(number(gap), beta, flipped)
    assert mixed.item() == pytest.approx(
        (1 - flipped) * right + flipped * wrong, rel=1e-9, abs=1e-12
    )
    as_said, the_other_way = (robust_dpo(number(side * gap), beta, flipped) for side in (1, -1))
    of_noise = (1 - flipped) * as_said + flipped * the_other_way
    assert of_noise.item() == pytest.approx(right, rel=1e-8, abs=1e-9), (
        "on average over flips, DPO of the true label"
    )


means = st.floats(-12.0, -1e-3)


@given(means, means, betas, st.floats(0.0, 3.0))
def test_simpo_and_odds_ratio_losses_match_closed_forms(
    chosen: float, rejected: float, beta: float, margin: float
) -> None:
    gap = simpo_loss(number(chosen - rejected), beta, margin)
    assert gap.item() == pytest.approx(
        math.log1p(math.exp(margin - beta * (chosen - rejected))), rel=1e-9
    )
    odds = [math.exp(mean) / (1 - math.exp(mean)) for mean in (chosen, rejected)]
    assert log_odds(number(chosen)).item() == pytest.approx(math.log(odds[0]), rel=1e-9, abs=1e-9)
    expected = -math.log(1 / (1 + odds[1] / odds[0]))
    assert odds_ratio(number(chosen), number(rejected)).item() == pytest.approx(
        expected, rel=1e-7, abs=1e-12
    )
