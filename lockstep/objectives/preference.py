"""Losses over pairs of answers to one prompt: the better y_w and the worse y_l.

With d = log π(y | x) − log π_ref(y | x) of an answer, all are functions of Δ = d_w − d_l and of β,
the weight of the divergence from the reference. β·Δ is the margin by which the policy's implicit
reward prefers the better answer. Some also read the gap s_w − s_l of the scores that a judge or the
data gave.

Legend: P pairs; all in nats, in the precision of the inputs.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

_LN_2 = math.log(2.0)


def dpo_loss(gap_P: Tensor, beta: float) -> Tensor:
    """−log σ(β·Δ): direct preference optimization (Rafailov et al. 2023, eq. 7); ln 2 at Δ = 0.

    Returns [P].
    """
    return -logsigmoid(beta * gap_P)


def conservative_dpo(gap_P: Tensor, beta: float, flipped: float) -> Tensor:
    """−(1 − ε)·log σ(β·Δ) − ε·log σ(−β·Δ): DPO if a share ε of the pairs is mislabeled.

    Mitchell 2023, 'A note on DPO with noisy preferences'. Its optimum is at β·Δ = log((1 − ε)/ε), a
    finite distance.

    Returns:
        [P]; bit-identical to `dpo_loss` for ε = 0.
    """
    return (1.0 - flipped) * dpo_loss(gap_P, beta) + flipped * dpo_loss(-gap_P, beta)


def robust_dpo(gap_P: Tensor, beta: float, flipped: float) -> Tensor:
    """(−(1 − ε)·log σ(β·Δ) + ε·log σ(−β·Δ)) / (1 − 2ε): unbiased DPO under flipped labels.

    Its mean over flipped labels equals DPO's loss on true ones (Chowdhury et al. 2024, 'Provably
    Robust DPO', eq. 11).

    Args:
        gap_P: Δ.
        beta: β.
        flipped: ε, the share of flipped labels, below ½.

    Returns:
        [P].
    """
    return ((1.0 - flipped) * dpo_loss(gap_P, beta) - flipped * dpo_loss(-gap_P, beta)) / (
        1.0 - 2.0 * flipped
    )


def simpo_loss(gap_P: Tensor, beta: float, margin: float) -> Tensor:
    """−log σ(β·Δ − γ) with Δ of per-token means: SimPO (Meng et al. 2024, eq. 6). Returns [P].

    Args:
        gap_P: Mean token log π of the better answer minus that of the worse one, without a
            reference.
        beta: β.
        margin: γ, the target reward margin.
    """
    return -logsigmoid(beta * gap_P - margin)


def log_odds(mean_B: Tensor) -> Tensor:
    """Log odds log(p / (1 − p)) of an answer's geometric-mean token probability p = e^mean [B].

    ORPO, eq. 4. A mean of 0 (every token is certain) becomes the closest negative number, so that
    the odds are finite.
    """
    below_B = mean_B.clamp(max=-torch.finfo(mean_B.dtype).tiny)
    return below_B - torch.where(
        below_B > -_LN_2,
        torch.log(-torch.expm1(below_B)),
        torch.log1p(-torch.exp(below_B.clamp(max=-_LN_2))),
    )


def odds_ratio(chosen_P: Tensor, rejected_P: Tensor) -> Tensor:
    """−log σ(log odds(y_w) − log odds(y_l)): ORPO's ratio term (Hong et al. 2024, eq. 7).

    It is ln 2 at equal odds.

    Args:
        chosen_P: Mean log-probability per token of the better answers, nats.
        rejected_P: Mean log-probability per token of the worse answers, nats.

    Returns:
        [P].
    """
    return -logsigmoid(log_odds(chosen_P) - log_odds(rejected_P))


def bradley_terry(gap_P: Tensor, margin_P: Tensor) -> Tensor:
    """−log σ(r_w − r_l − m): the reward model loss.

    Ouyang et al. 2022, eq. 1; Touvron et al. 2023, eq. 2.

    Args:
        gap_P: r_w − r_l.
        margin_P: m, the margin by which r_w should exceed r_l.

    Returns:
        [P]; ln 2 if the gap equals the margin.
    """
    return -logsigmoid(gap_P - margin_P)


def dpo_scaled_by_scores(gap_P: Tensor, beta: float, score_gap_P: Tensor) -> Tensor:
    """−|s_w − s_l|·log σ(β·Δ): each pair is weighted by its score gap.

    The scaled Bradley-Terry loss of reward models (Wang et al. 2024, 'HelpSteer2-Preference', eq.
    3) with DPO's reward.

    Returns:
        [P].
    """
    return score_gap_P.abs() * dpo_loss(gap_P, beta)


def ipo_loss(gap_P: Tensor, beta: float) -> Tensor:
    """(Δ − 1/(2β))²: IPO (Azar et al. 2023, eq. 17), whose optimum is finite. Returns [P]."""
    return (gap_P - 1.0 / (2.0 * beta)).square()


def rpo_squared(gap_P: Tensor, beta: float, reward_gap_P: Tensor) -> Tensor:
    """(β·Δ − g)²: reward-aware preference optimization (Sun et al. 2025) by squared distance.

    Args:
        gap_P: Δ.
        beta: β.
        reward_gap_P: g = η·(s_w − s_l), on the scale of β·Δ.

    Returns:
        [P]; 0 if the policy's gap equals the gap of the scores.
    """
    return (beta * gap_P - reward_gap_P).square()


def rpo_backward_kl(gap_P: Tensor, beta: float, reward_gap_P: Tensor) -> Tensor:
    """KL(Bern(σ(g)) ‖ Bern(σ(β·Δ))): RPO by the forward KL from scores to policy.

    Nemotron-4 340B (Adler et al. 2024, §3.3.2); arguments as in `rpo_squared`.
    """
    return _bernoulli_kl(reward_gap_P, beta * gap_P)


def rpo_forward_kl(gap_P: Tensor, beta: float, reward_gap_P: Tensor) -> Tensor:
    """KL(Bern(σ(β·Δ)) ‖ Bern(σ(g))): RPO by the backward KL (Sun et al. 2025)."""
    return _bernoulli_kl(beta * gap_P, reward_gap_P)


def _bernoulli_kl(a_P: Tensor, b_P: Tensor) -> Tensor:
    """KL(Bern(σ(a)) ‖ Bern(σ(b))) from logits, without rounding probabilities to 0 or 1."""
    yes_P = a_P.sigmoid() * (logsigmoid(a_P) - logsigmoid(b_P))
    no_P = (-a_P).sigmoid() * (logsigmoid(-a_P) - logsigmoid(-b_P))
    return yes_P + no_P
