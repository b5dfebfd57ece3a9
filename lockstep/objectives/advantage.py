"""Generalized advantage estimation (Schulman et al. 2016) over trainable tokens.

The batch is ragged. Only trainable tokens are steps of the decision process: tool output, user
turns, prompts and padding are skipped. See `masks` for the legend; T is the largest number of
trainable tokens in a sequence.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lockstep.objectives.masks import find_token_rows, sequence_sum


@torch.no_grad()
def gae(
    reward_N: Tensor,
    value_N: Tensor,
    mask_N: Tensor,
    lengths: Tensor,
    *,
    gamma: float,
    lam: float | Tensor,
    final_value_B: Tensor | None = None,
) -> Tensor:
    """Estimates the advantage of each trainable token over the value of the state before it.

    With t+1 the next trainable token of the same sequence (Schulman et al. 2016, eq. 16):

        δ_t = r_t + γ·V_{t+1} − V_t,    A_t = δ_t + γλ·A_{t+1} = Σ_k (γλ)^k δ_{t+k}

    Args:
        reward_N: r of each token, fp32 [N].
        value_N: V of the state before each token, fp32 [N].
        mask_N: Trainable tokens, bool [N].
        lengths: Tokens of each sequence, int64 [B], on the CPU.
        gamma: Discount γ per trainable token.
        lam: λ, one for all or one per sequence [B].
        final_value_B: V of the state after each sequence, fp32 [B]: 0 for a finished sequence; a
            truncated one keeps its value. None: all have finished.

    Returns:
        Advantages, fp32 [N], 0 where the mask is off.

    Raises:
        ValueError: If the lengths do not add up to N.
    """
    if int(lengths.sum()) != len(reward_N):
        raise ValueError(f"lengths add up to {int(lengths.sum())}, but got {len(reward_N)} rewards")
    row_S = find_token_rows(lengths, mask_N.device)[mask_N]
    count_B = torch.bincount(row_S, minlength=len(lengths))
    steps = int(count_B.max()) if len(row_S) else 0
    # Trainable tokens are laid out by step and sequence; every sequence ends at the last step.
    step_S = steps - count_B.cumsum(0)[row_S] + torch.arange(len(row_S), device=row_S.device)
    reward_TB, value_TB, advantage_TB = reward_N.new_zeros(3, steps, len(lengths))
    reward_TB[step_S, row_S] = reward_N[mask_N]
    value_TB[step_S, row_S] = value_N[mask_N]

    next_advantage_B = reward_N.new_zeros(len(lengths))
    next_value_B = next_advantage_B if final_value_B is None else final_value_B
    for step in reversed(range(steps)):
        delta_B = reward_TB[step] + gamma * next_value_B - value_TB[step]
        next_advantage_B = delta_B + gamma * lam * next_advantage_B
        next_value_B = value_TB[step]
        advantage_TB[step] = next_advantage_B

    advantage_N = reward_N.new_zeros(len(reward_N))
    advantage_N[mask_N] = advantage_TB[step_S, row_S]
    return advantage_N


def length_adaptive_lambda(mask_N: Tensor, lengths: Tensor, alpha: float) -> Tensor:
    """Computes λ that grows with length, so that a final reward reaches the start of a response.

    λ = 1 − 1 / max(1, α·length), length in trainable tokens (length-adaptive GAE of VAPO, Yue et
    al. 2025; the maximum keeps λ ≥ 0 if α·length < 1).

    Returns:
        fp32 [B].
    """
    length_B = sequence_sum(torch.ones_like(mask_N, dtype=torch.float32), mask_N, lengths)
    return 1.0 - 1.0 / (alpha * length_B).clamp(min=1.0)
