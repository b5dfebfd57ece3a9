"""Pure functions of tensors: advantages, clipped objectives, divergences, corrections, shaping."""

from __future__ import annotations

from lockstep.objectives.advantage import gae, length_adaptive_lambda
from lockstep.objectives.divergence import k1, k2, k3, kl_loss
from lockstep.objectives.group import group_advantage
from lockstep.objectives.masks import masked_mean, masked_whiten, sequence_sum
from lockstep.objectives.mismatch import icepop, sequence_tis, token_tis
from lockstep.objectives.policy import cispo_loss, clip_surrogate, probability_ratio
from lockstep.objectives.shaping import overlong_penalty, scale_reward, token_rewards
from lockstep.objectives.value import clip_value_loss

__all__ = [
    "cispo_loss",
    "clip_surrogate",
    "clip_value_loss",
    "gae",
    "group_advantage",
    "icepop",
    "k1",
    "k2",
    "k3",
    "kl_loss",
    "length_adaptive_lambda",
    "masked_mean",
    "masked_whiten",
    "overlong_penalty",
    "probability_ratio",
    "scale_reward",
    "sequence_sum",
    "sequence_tis",
    "token_rewards",
    "token_tis",
]
