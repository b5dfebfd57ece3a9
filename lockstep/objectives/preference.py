"""Losses over pairs of answers to one prompt, the better y_w and the worse y_l.

With d = log π(y | x) − log π_ref(y | x) of an answer, all are functions of Δ = d_w − d_l, and of β,
the weight of the divergence from the reference: β·Δ is by how much the policy's implicit reward
prefers the better answer. Some also read the gap s_w − s_l of the scores that a judge or the data
gave.

Legend: P pairs; all in nats, in the precision of what is given.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

_LN_2 = math.log(2.0)


def dpo(gap_P: Tensor, beta: float) -> Tensor:
    """−log σ(β·Δ): direct preference optimization (Rafailov et al. 2023, eq. 7); ln 2 at Δ = 0.

    Returns [P].
    """
    return -logsigmoid(beta * gap_P)


def conservative_dpo(gap_P: Tensor, beta: float, flipped: float) -> Tensor:
    """−(1 − ε)·log σ(β·Δ) − ε·log σ(−β·Δ): DPO where a share ε of the pairs is labeled the wrong
    way round.

    Mitchell 2023, 'A note on DPO with noisy preferences'. Its optimum is at β·Δ = log((1 − ε)/ε), a
    finite distance.

    Returns:
        [P]; that of `dpo` for ε = 0, to the bit.
    """
    return (1.0 - flipped) * dpo(gap_P, beta) + flipped * dpo(-gap_P, beta)


def robust_dpo(gap_P: Tensor, beta: float, flipped: float) -> Tensor:
    """(−(1 − ε)·log σ(β·Δ) + ε·log σ(−β·Δ)) / (1 − 2ε), whose mean over labels so flipped is DPO's
    on true ones.

    Chowdhury et al. 2024, 'Provably Robust DPO', eq. 11.

    Args:
        gap_P: Δ.
        beta: β.
        flipped: ε, below ½.

    Returns:
        [P].
    """
    return ((1.0 - flipped) * dpo(gap_P, beta) - flipped * dpo(-gap_P, beta)) / (
        1.0 - 2.0 * flipped
    )


def simpo(gap_P: Tensor, beta: float, margin: float) -> Tensor:
    """−log σ(β·Δ − γ), Δ the difference of mean log-probabilities per token: SimPO (Meng et al.
    2024, eq. 6). [P].

    Args:
        gap_P: Mean log π of the better answer's tokens, less that of the worse one's; no reference
            is in it.
        beta: β.
        margin: γ, the target reward margin.
    """
    return -logsigmoid(beta * gap_P - margin)


def log_odds(mean_B: Tensor) -> Tensor:
    """log(p / (1 − p)) of p = e^mean, the geometric mean of an answer's token probabilities (ORPO,
    eq. 4). [B].

    A mean of 0 (every token is certain) counts as the negative number next to it, so that the odds
    are finite.
    """
    below_B = mean_B.clamp(max=-torch.finfo(mean_B.dtype).tiny)
    return below_B - torch.where(
        below_B > -_LN_2,
        torch.log(-torch.expm1(below_B)),
        torch.log1p(-torch.exp(below_B.clamp(max=-_LN_2))),
    )


def odds_ratio(chosen_P: Tensor, rejected_P: Tensor) -> Tensor:
    """−log σ(log odds(y_w) − log odds(y_l)): the ratio term of ORPO (Hong et al. 2024, eq. 7); ln 2
    at equal odds.

    Args:
        chosen_P: Mean log-probability per token of the better answers, nats.
        rejected_P: Of the worse ones.

    Returns:
        [P].
    """
    return -logsigmoid(log_odds(chosen_P) - log_odds(rejected_P))


def bradley_terry(gap_P: Tensor, margin_P: Tensor) -> Tensor:
    """−log σ(r_w − r_l − m): the loss of reward models (Ouyang et al. 2022, eq. 1; Touvron et al.
    2023, eq. 2).

    Args:
        gap_P: r_w − r_l.
        margin_P: m, the margin by which r_w should exceed r_l.

    Returns:
        [P]; ln 2 where the gap is the margin.
    """
    return -logsigmoid(gap_P - margin_P)


def dpo_scaled_by_scores(gap_P: Tensor, beta: float, score_gap_P: Tensor) -> Tensor:
    """−|s_w − s_l|·log σ(β·Δ): each pair counts as much as its scores differ.

    The scaled Bradley-Terry loss of reward models (Wang et al. 2024, 'HelpSteer2-Preference', eq.
    3) with DPO's reward.

    Returns:
        [P].
    """
    return score_gap_P.abs() * dpo(gap_P, beta)


def ipo(gap_P: Tensor, beta: float) -> Tensor:
    """(Δ − 1/(2β))²: identity preference optimization (Azar et al. 2023, eq. 17), whose optimum is
    finite. [P].
    """
    return (gap_P - 1.0 / (2.0 * beta)).square()


def rpo_squared(gap_P: Tensor, beta: float, reward_gap_P: Tensor) -> Tensor:
    """(β·Δ − g)²: reward-aware preference optimization (Sun et al. 2025) by squared distance.

    Args:
        gap_P: Δ.
        beta: β.
        reward_gap_P: g = η·(s_w − s_l), on the scale of β·Δ.

    Returns:
        [P]; 0 where the policy's gap is that of the scores.
    """
    return (beta * gap_P - reward_gap_P).square()


def rpo_backward_kl(gap_P: Tensor, beta: float, reward_gap_P: Tensor) -> Tensor:
    """KL(Bern(σ(g)) ‖ Bern(σ(β·Δ))): as `rpo_squared`, by the KL from the preference of the scores
    to the policy's.

    Nemotron-4 340B (Adler et al. 2024, §3.3.2); arguments as in `rpo_squared`.
    """
    return _bernoulli_kl(reward_gap_P, beta * gap_P)


def rpo_forward_kl(gap_P: Tensor, beta: float, reward_gap_P: Tensor) -> Tensor:
    """KL(Bern(σ(β·Δ)) ‖ Bern(σ(g))): the same the other way round (Sun et al. 2025)."""
    return _bernoulli_kl(beta * gap_P, reward_gap_P)


def _bernoulli_kl(a_P: Tensor, b_P: Tensor) -> Tensor:
    """KL(Bern(σ(a)) ‖ Bern(σ(b))) from logits; no probability is rounded to 0 or 1 before its
    logarithm.
    """
    yes_P = a_P.sigmoid() * (logsigmoid(a_P) - logsigmoid(b_P))
    no_P = (-a_P).sigmoid() * (logsigmoid(-a_P) - logsigmoid(-b_P))
    return yes_P + no_P
