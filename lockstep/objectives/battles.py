"""Ranks judgments by Bradley-Terry (1952) over battles, as in Meta-Rewarding (Wu et al. 2024)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

BattleWinner = Literal["A", "B"]
"""A: the player shown first; B: the player shown second."""
BattleResults = Mapping[tuple[int, int], BattleWinner | None]
"""Winner of each battle, by its players in the order shown; None: no verdict."""

_STEPS = 100
_EXACT = 1e-12


def consistent_wins(battles: BattleResults, players: int) -> Tensor:
    """Counts one win per pair if both orders agree, else a tie: half a win for each player.

    Args:
        battles: Battles; pairs with a missing or undecided order do not count.
        players: Number of players.

    Returns:
        Wins of player i over player j, float64 [P, P].
    """
    wins_PP = torch.zeros(players, players, dtype=torch.float64)
    for (i, j), winner in battles.items():
        back = battles.get((j, i))
        if i > j or winner is None or back is None:
            continue
        if winner == back:  # the same position won both times: the order decided, not the answers
            wins_PP[i, j] += 0.5
            wins_PP[j, i] += 0.5
        elif winner == "A":
            wins_PP[i, j] += 1
        else:
            wins_PP[j, i] += 1
    return wins_PP


def position_weighted_wins(battles: BattleResults, players: int) -> Tensor:
    """Counts wins weighted by position; the position that wins more often weighs less.

    B_ij = ω₁·1[i wins when (i, j) is shown] + ω₂·1[i wins when (j, i) is shown]; ω₁ is the share of
    decided battles won by the player shown second, and ω₂ the share won by the player shown first
    (Wu et al. 2024, eq. 3–4). A battle without a verdict adds nothing, and its other order still
    counts, as in the paper. The paper leaves open over which battles the shares are computed; here
    they are the given battles, of one answer, so that a pair does not depend on other answers of
    its step.

    Args:
        battles: Battles; those without a verdict do not count.
        players: Number of players.

    Returns:
        Weighted wins of player i over player j, float64 [P, P]; all 0 if one position wins every
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
    """Maximizes Σ_ij wins_ij · log σ(θ_i − θ_j) − l2/2 · ‖θ‖² over θ by Newton's method.

    The small l2 makes the optimum finite and unique, even if one player wins every battle.

    Args:
        wins_PP: Number or total weight of the wins of i over j [P, P].
        l2: Regularization, above 0.

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
        # the largest step of 1, ½, ¼, … that lowers the objective at most by rounding
        here = _compute_likelihood(wins_PP, theta_P, l2)
        enough = here - _EXACT * max(1.0, abs(here))
        size = 1.0
        while size > _EXACT and _compute_likelihood(wins_PP, theta_P + size * step_P, l2) < enough:
            size /= 2
        theta_P = theta_P + size * step_P
        if float(gradient_P.abs().max()) < _EXACT:
            break
    return theta_P


def _compute_likelihood(wins_PP: Tensor, theta_P: Tensor, l2: float) -> float:
    apart_PP = theta_P[:, None] - theta_P[None, :]
    likelihood = (wins_PP * torch.nn.functional.logsigmoid(apart_PP)).sum()
    return float(likelihood - l2 / 2 * theta_P.square().sum())
