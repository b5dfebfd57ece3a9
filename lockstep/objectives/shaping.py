"""Shaping of a response's score before it becomes a reward."""

from __future__ import annotations

import torch
from torch import Tensor

from lockstep.objectives.masks import find_token_rows


def scale_reward(
    score_B: Tensor, source: tuple[float, float], target: tuple[float, float]
) -> Tensor:
    """Clamps the score to `source` and maps that range linearly onto `target`."""
    low, high = source
    fraction_B = (score_B.clamp(low, high) - low) / (high - low)
    return target[0] + fraction_B * (target[1] - target[0])


def overlong_penalty(length_B: Tensor, max_tokens: int, buffer: int, penalty: float) -> Tensor:
    """A length penalty, linear up to `penalty` over the last `buffer` tokens before `max_tokens`.

    DAPO (Yu et al. 2025), eq. 13.
    """
    over_B = (length_B - (max_tokens - buffer)) / buffer
    return penalty * over_B.clamp(0.0, 1.0)


def token_rewards(score_B: Tensor, mask_N: Tensor, lengths: Tensor) -> Tensor:
    """Puts each sequence's score at its last trainable token.

    Returns:
        fp32 [N], 0 elsewhere; a sequence without trainable tokens gets no reward.
    """
    index_N = torch.arange(mask_N.numel(), device=mask_N.device).masked_fill_(~mask_N, -1)
    nowhere_B = index_N.new_full((lengths.numel(),), -1)
    last_B = nowhere_B.scatter_reduce(0, find_token_rows(lengths, mask_N.device), index_N, "amax")
    reward_N = torch.zeros(mask_N.numel(), device=mask_N.device)
    return reward_N.index_add_(0, last_B.clamp(min=0), score_B.float().masked_fill(last_B < 0, 0.0))
