"""Advantages without a critic: each response is compared with others to the same prompt.

P prompts, each with G adjacent responses; B = P·G.
"""

from __future__ import annotations

from typing import assert_never

import torch
from torch import Tensor

from lockstep.core.types import BaselineKind, ScaleRewards

_LEAST = 1e-4  # added to the standard deviation, so that equal rewards do not divide by 0
_LEAST_OF_OTHERS = 1e-6  # added to the standard deviation of the others if it is not 0


def group_advantage(
    score_B: Tensor,
    judged_B: Tensor,
    group_size: int,
    *,
    baseline: BaselineKind,
    scale: ScaleRewards,
) -> tuple[Tensor, Tensor]:
    """Computes A_i = (r_i − b_i) / s over judged responses; others are left out.

    The mean of the group (GRPO, Shao et al. 2024, §4.1.2) holds r_i itself; the mean of the others
    (RLOO, Ahmadian et al. 2024, eq. 5) does not, and r_i is n/(n − 1) times as far from it. Without
    s the advantage is unbiased (Dr. GRPO, Liu et al. 2025).

    Computed in fp64, in which the mean of n equal fp32 numbers is exact, so equal scores give
    exactly 0. In fp32 the mean of equal 0.3 can be off by 3e-8; divided by 1e-4 that is 3e-4, and
    Adam, which ignores scale, turns it into a full step.

    Args:
        score_B: r, fp32 [B].
        judged_B: True for each response that was judged, bool [B].
        group_size: G.
        baseline: b: the mean of the group, of its others, or 0.
        scale: s: the standard deviation of the group, or of all B, with n − 1; or 1; or the
            standard deviation of the others of the group, or 1 if they are equal: one right answer
            among wrong ones keeps the advantage 1, as in NeMo RL.

    Returns:
        A [B]; 0 for a response without a score and, with a baseline, for the only scored one of its
        group. And 1/s [B], which scales per-token rewards to advantages; 0 if A is 0 for one of
        these reasons.
    """
    judged_PG = judged_B.view(-1, group_size)
    score_PG = torch.where(judged_PG, score_B.view(-1, group_size), 0.0).double()
    count_P1 = judged_PG.sum(-1, keepdim=True)
    mean_P1 = score_PG.sum(-1, keepdim=True) / count_P1.clamp(min=1)
    centered_PG = torch.where(judged_PG, score_PG - mean_P1, 0.0)
    slope_PG = judged_PG.double()
    match baseline:
        case "none":
            advantage_PG = score_PG
        case "mean":
            advantage_PG = centered_PG
            slope_PG = slope_PG * (count_P1 > 1)
        case "leave_one_out":
            advantage_PG = centered_PG * count_P1 / (count_P1 - 1).clamp(min=1)
            slope_PG = slope_PG * (count_P1 > 1)
        case _:
            assert_never(baseline)
    match scale:
        case "group":
            deviation = (
                centered_PG.square().sum(-1, keepdim=True) / (count_P1 - 1).clamp(min=1)
            ).sqrt()
            advantage_PG = advantage_PG / (deviation + _LEAST)
            slope_PG = slope_PG / (deviation + _LEAST)
        case "others":
            of_others_PG = _deviation_of_others(score_PG, judged_PG)
            scale_PG = torch.where(of_others_PG > 0, of_others_PG + _LEAST_OF_OTHERS, 1.0)
            advantage_PG = advantage_PG / scale_PG
            slope_PG = slope_PG / scale_PG
        case "batch":
            all_N = score_B[judged_B].double()
            deviation = all_N.std() if len(all_N) > 1 else all_N.new_zeros(())
            advantage_PG = advantage_PG / (deviation + _LEAST)
            slope_PG = slope_PG / (deviation + _LEAST)
        case "none":
            pass
        case _:
            assert_never(scale)
    return advantage_PG.reshape(-1).to(score_B.dtype), slope_PG.reshape(-1).to(score_B.dtype)


def _deviation_of_others(score_PG: Tensor, judged_PG: Tensor) -> Tensor:
    """Standard deviation of the others, with n − 1; exactly 0 if they are equal or fewer than two.

    Computed from the differences: subtracting one response from sums over the group would leave a
    rounding error instead of 0.
    """
    own_GG = torch.eye(score_PG.shape[-1], dtype=torch.bool, device=score_PG.device)
    others_PGG = judged_PG.unsqueeze(-2) & ~own_GG
    count_PG1 = others_PGG.sum(-1, keepdim=True)
    score_P1G = score_PG.unsqueeze(-2)
    mean_PG1 = torch.where(others_PGG, score_P1G, 0.0).sum(-1, keepdim=True) / count_PG1.clamp(
        min=1
    )
    squares_PG1 = torch.where(others_PGG, score_P1G - mean_PG1, 0.0).square().sum(-1, keepdim=True)
    return (squares_PG1 / (count_PG1 - 1).clamp(min=1)).sqrt().squeeze(-1)
