"""Ranks judgements by pairwise battles with the Bradley-Terry model (1952), as Meta-Rewarding does
(Wu et al. 2024).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

Winner = Literal["A", "B"]
"""A: the player that is shown first; B: the other."""
Battles = Mapping[tuple[int, int], Winner | None]
"""Winner of each battle, by the players in the order in which they were shown; None: no verdict."""

_STEPS = 100
_EXACT = 1e-12


def consistent_wins(battles: Battles, players: int) -> Tensor:
    """Counts one win per pair where both orders name the same player, else a tie: half a win for
    each.

    Args:
        battles: Pairs with an order that is missing or undecided do not count.
        players: Number of players.

    Returns:
        Wins of player i over player j, float64 [P, P].
    """
    wins_PP = torch.zeros(players, players, dtype=torch.float64)
    for (i, j), winner in battles.items():
        back = battles.get((j, i))
        if i > j or winner is None or back is None:
            continue
        if winner == back:  # the same place won both times: the order decided, not the answers
            wins_PP[i, j] += 0.5
            wins_PP[j, i] += 0.5
        elif winner == "A":
            wins_PP[i, j] += 1
        else:
            wins_PP[j, i] += 1
    return wins_PP


def position_weighted_wins(battles: Battles, players: int) -> Tensor:
    """Counts wins with less weight in the place that wins more often: ω₁ for one shown first, ω₂
    for one shown second.

    B_ij = ω₁·1[i wins when (i, j) is shown] + ω₂·1[i wins when (j, i) is shown]; ω₁ is the share of
    decided battles that the second place wins, and ω₂ that of the first (Wu et al. 2024, eq. 3–4).
    A battle without a verdict adds nothing, and its other order still counts, as in the paper. The
    paper does not say over which battles wins are totaled; here these are the battles given, of one
    answer, so that no pair depends on other answers of its step.

    Args:
        battles: Those without a verdict do not count.
        players: Number of players.

    Returns:
        Weighted wins of player i over player j, float64 [P, P]; all 0 where one place wins every
        battle.
    """
    decided = {pair: winner for pair, winner in battles.items() if winner is not None}
    second = sum(winner == "B" for winner in decided.values()) / max(len(decided), 1)
    wins_PP = torch.zeros(players, players, dtype=torch.float64)
    for (i, j), winner in decided.items():
        if winner == "A":
            wins_PP[i, j] += second
        else:
            wins_PP[j, i] += 1 - second
    return wins_PP


def bradley_terry(wins_PP: Tensor, l2: float = 0.01) -> Tensor:
    """Strengths θ that maximize Σ_ij wins_ij · log σ(θ_i − θ_j) − l2/2 · ‖θ‖², by Newton's method.

    The small l2 makes the optimum finite and unique, also where one player wins every battle.

    Args:
        wins_PP: How often, or with what total weight, i beat j [P, P].
        l2: Above 0.

    Returns:
        θ, float64 [P]; its sum is 0. 400·θ/ln 10 + 1000 is the Elo scale.
    """
    wins_PP = wins_PP.double().clone().fill_diagonal_(0.0)
    theta_P = torch.zeros(len(wins_PP), dtype=torch.float64)
    for _ in range(_STEPS):
        apart_PP = theta_P[:, None] - theta_P[None, :]
        lost_PP = wins_PP * torch.sigmoid(-apart_PP)
        gradient_P = lost_PP.sum(1) - lost_PP.sum(0) - l2 * theta_P
        curve_PP = (wins_PP + wins_PP.T) * torch.sigmoid(apart_PP) * torch.sigmoid(-apart_PP)
        hessian_PP = torch.diag(curve_PP.sum(1) + l2) - curve_PP
        step_P = torch.linalg.solve(hessian_PP, gradient_P)
        theta_P = theta_P + _damp(wins_PP, theta_P, step_P, l2) * step_P
        if float(gradient_P.abs().max()) < _EXACT:
            break
    return theta_P


def _damp(wins_PP: Tensor, theta_P: Tensor, step_P: Tensor, l2: float) -> float:
    """Returns the largest of 1, ½, ¼, … at which a step does not lower the objective by more than
    rounding.
    """
    here = _objective(wins_PP, theta_P, l2)
    size = 1.0
    enough = here - _EXACT * max(1.0, abs(here))
    while size > _EXACT and _objective(wins_PP, theta_P + size * step_P, l2) < enough:
        size /= 2
    return size


def _objective(wins_PP: Tensor, theta_P: Tensor, l2: float) -> float:
    apart_PP = theta_P[:, None] - theta_P[None, :]
    likelihood = (wins_PP * torch.nn.functional.logsigmoid(apart_PP)).sum()
    return float(likelihood - l2 / 2 * theta_P.square().sum())
