"""Pure functions of tensors: advantages, clipped objectives, divergences, corrections, shaping."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.lazy_names import export_lazily

if TYPE_CHECKING:
    from lockstep.objectives.advantage import gae, length_adaptive_lambda
    from lockstep.objectives.divergence import k1, k2, k3, kl_loss
    from lockstep.objectives.group import group_advantage
    from lockstep.objectives.masks import masked_mean, masked_whiten, sequence_sum
    from lockstep.objectives.mismatch import IcePop, SequenceTIS, TokenTIS
    from lockstep.objectives.policy import cispo_loss, clip_surrogate, probability_ratio
    from lockstep.objectives.shaping import OverlongPenalty, ScaleReward, TruncationPenalty, token_rewards
    from lockstep.objectives.value import clip_value_loss

__all__ = [
    "IcePop",
    "OverlongPenalty",
    "ScaleReward",
    "SequenceTIS",
    "TokenTIS",
    "TruncationPenalty",
    "cispo_loss",
    "clip_surrogate",
    "clip_value_loss",
    "gae",
    "group_advantage",
    "k1",
    "k2",
    "k3",
    "kl_loss",
    "length_adaptive_lambda",
    "masked_mean",
    "masked_whiten",
    "probability_ratio",
    "sequence_sum",
    "token_rewards",
]

_PLACES = {
    "lockstep.objectives.advantage": (
        "gae",
        "length_adaptive_lambda",
    ),
    "lockstep.objectives.divergence": (
        "k1",
        "k2",
        "k3",
        "kl_loss",
    ),
    "lockstep.objectives.group": ("group_advantage",),
    "lockstep.objectives.masks": (
        "masked_mean",
        "masked_whiten",
        "sequence_sum",
    ),
    "lockstep.objectives.mismatch": (
        "IcePop",
        "SequenceTIS",
        "TokenTIS",
    ),
    "lockstep.objectives.policy": (
        "cispo_loss",
        "clip_surrogate",
        "probability_ratio",
    ),
    "lockstep.objectives.shaping": (
        "OverlongPenalty",
        "ScaleReward",
        "TruncationPenalty",
        "token_rewards",
    ),
    "lockstep.objectives.value": ("clip_value_loss",),
}
"""Names that are exported here, by the module that defines them."""

__getattr__ = export_lazily(__name__, _PLACES)
