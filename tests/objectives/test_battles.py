"""Battles of judgments: who won counts by the pair that fought, and strengths are those of Bradley
and Terry.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lockstep.objectives.battles import (
    BattleWinner,
    bradley_terry,
    consistent_wins,
    position_weighted_wins,
)


def wins(*rows: Sequence[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def test_battle_win_counts_fully_only_if_both_orders_agree() -> None:
    battles: dict[tuple[int, int], BattleWinner | None] = {
        (0, 1): "A", (1, 0): "B",  # 0 beats 1
        (0, 2): "A", (2, 0): "A",  # a tie: the one shown first
        (1, 2): "B", (2, 1): None,  # half of it undecided
    }  # fmt: skip
    assert torch.equal(consistent_wins(battles, 3), wins([0, 1, 0.5], [0, 0, 0], [0.5, 0, 0]))


def test_wins_in_position_that_wins_more_often_get_less_weight() -> None:
    """Equations 3 and 4 of Wu et al. 2024: of five verdicts the first place wins four, so ω₁ = 1/5
    and ω₂ = 4/5.
    """
    battles: dict[tuple[int, int], BattleWinner | None] = {
        (0, 1): "A", (1, 0): "A",  # each wins in front
        (0, 2): "A", (2, 0): "B",  # 0 wins in both places
        (1, 2): None, (2, 1): "A",  # one order without a verdict: the other counts
    }  # fmt: skip
    assert torch.allclose(
        position_weighted_wins(battles, 3),
        wins([0, 1 / 5, 1 / 5 + 4 / 5], [1 / 5, 0, 0], [0, 1 / 5, 0]),
        atol=1e-15,
    )


@given(st.integers(2, 6), st.data())
def test_bradley_terry_strengths_maximize_regularized_likelihood(
    players: int, data: st.DataObject
) -> None:
    pairs = list(itertools.permutations(range(players), 2))
    drawn = data.draw(st.lists(st.integers(0, 4), min_size=len(pairs), max_size=len(pairs)))
    table = torch.zeros(players, players, dtype=torch.float64)
    for (i, j), count in zip(pairs, drawn, strict=True):
        table[i, j] = count
    assert _slope(table, 0.05) < 1e-8


def _slope(table: torch.Tensor, l2: float) -> float:
    """How far the found strengths are from being the best, by the steepest slope there."""
    theta = bradley_terry(table, l2).requires_grad_()
    likelihood = (table * torch.nn.functional.logsigmoid(theta[:, None] - theta[None, :])).sum()
    (likelihood - l2 / 2 * theta.square().sum()).backward()
    assert theta.grad is not None
    return float(theta.grad.abs().max())
