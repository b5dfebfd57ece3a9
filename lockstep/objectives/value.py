"""The critic's clipped squared error."""

from __future__ import annotations

import torch
from torch import Tensor


def clip_value_loss(
    value_N: Tensor, old_value_N: Tensor, return_N: Tensor, clip: float | None
) -> tuple[Tensor, Tensor]:
    """½·max((V − R)², (V_clip − R)²) with V_clip = V_old + clip(V − V_old, ±ε).

    This is the value clipping of PPO2 in OpenAI Baselines.

    Args:
        value_N: V of the state before each token, fp32 [N].
        old_value_N: V at the time of the rollout.
        return_N: R, the target of V.
        clip: ε in reward units; None: plain ½(V − R)².

    Returns:
        The loss of each token [N], and whether the bound is active, which makes its gradient 0,
        bool [N].
    """
    plain_N = 0.5 * (value_N - return_N).square()
    if clip is None:
        return plain_N, torch.zeros_like(plain_N, dtype=torch.bool)
    moved_N = value_N - old_value_N
    bounded_N = 0.5 * (old_value_N + moved_N.clamp(-clip, clip) - return_N).square()
    # If V has moved less than ε, the two differ only by rounding, and the bound is inactive.
    return torch.maximum(plain_N, bounded_N), (bounded_N > plain_N) & (moved_N.abs() > clip)
