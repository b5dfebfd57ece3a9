"""Shaping of a response's score before it becomes a reward: small values that an algorithm applies in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lockstep.objectives.masks import rows

Shaping = Callable[[Tensor, Tensor, Tensor], Tensor]
"""A new score [B] of score, length of the response in tokens, and whether a limit cut it off."""


@dataclass(frozen=True)
class ScaleReward:
    """Clamps the score to `source` and maps that range linearly onto `target`."""

    source: tuple[float, float]
    target: tuple[float, float]

    def __call__(self, score_B: Tensor, length_B: Tensor, truncated_B: Tensor) -> Tensor:
        low, high = self.source
        fraction_B = (score_B.clamp(low, high) - low) / (high - low)
        return self.target[0] + fraction_B * (self.target[1] - self.target[0])


@dataclass(frozen=True)
class OverlongPenalty:
    """Takes up to `penalty` off, linearly over the last `buffer` tokens before `max_tokens` (DAPO, eq. 13; Yu 2025)."""

    max_tokens: int
    buffer: int
    penalty: float

    def __call__(self, score_B: Tensor, length_B: Tensor, truncated_B: Tensor) -> Tensor:
        over_B = (length_B - (self.max_tokens - self.buffer)) / self.buffer
        return score_B - self.penalty * over_B.clamp(0.0, 1.0)


@dataclass(frozen=True)
class TruncationPenalty:
    """Takes `penalty` off a response that a limit cut off."""

    penalty: float

    def __call__(self, score_B: Tensor, length_B: Tensor, truncated_B: Tensor) -> Tensor:
        return score_B - self.penalty * truncated_B.to(score_B)


def token_rewards(score_B: Tensor, mask_N: Tensor, lengths: Tensor) -> Tensor:
    """Puts each sequence's score at its last trainable token.

    Returns:
        fp32 [N], 0 elsewhere; a sequence without a trainable token gives no reward.
    """
    index_N = torch.arange(mask_N.numel(), device=mask_N.device).masked_fill_(~mask_N, -1)
    nowhere_B = index_N.new_full((lengths.numel(),), -1)
    last_B = nowhere_B.scatter_reduce(0, rows(lengths, mask_N.device), index_N, "amax")
    reward_N = torch.zeros(mask_N.numel(), device=mask_N.device)
    return reward_N.index_add_(0, last_B.clamp(min=0), score_B.float().masked_fill(last_B < 0, 0.0))
