"""The options of learning from pairs of answers, a chosen and a rejected one, which several algorithms have."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from lockstep.recipe.section import Section

PreferenceLoss = Literal["dpo", "scale", "ipo", "rpo_sq", "rpo_bwd_kl", "rpo_fwd_kl"]


class PreferenceSection(Section):
    """What is learned from a pair; see `lockstep.objectives.preference` for the losses."""

    preference_loss: PreferenceLoss = Field(default="dpo", description="of a pair; `scale` and `rpo_…` read its scores")
    preference_loss_weight: NonNegativeFloat = Field(default=1.0, description="of that loss in the whole")
    sft_loss_weight: NonNegativeFloat = Field(
        default=0.0, description="of the maximum likelihood of chosen answers in the whole"
    )
    preference_average_log_probs: bool = Field(
        default=False, description="the loss sees means over an answer's tokens instead of sums"
    )
    sft_average_log_probs: bool | None = Field(
        default=None, description="likewise for the likelihood of chosen answers; null: as preference_average_log_probs"
    )
    gt_reward_scale: PositiveFloat = Field(
        default=1.0, description="rpo_…: a difference of scores times this is the difference of rewards to aim at"
    )

    @property
    def reads_scores(self) -> bool:
        """Whether pairs need the scores of their answers."""
        return self.preference_loss not in ("dpo", "ipo")

    @model_validator(mode="after")
    def _something_is_learned(self) -> PreferenceSection:
        if not self.preference_loss_weight and not self.sft_loss_weight:
            raise ValueError(
                "preference_loss_weight and sft_loss_weight are both 0, so nothing is learned; raise one of them"
            )
        return self

    @model_validator(mode="after")
    def _scale_has_an_aim(self) -> PreferenceSection:
        default = type(self).model_fields["gt_reward_scale"].default
        if self.gt_reward_scale != default and not self.preference_loss.startswith("rpo_"):
            raise ValueError(f"gt_reward_scale goes with preference_loss: rpo_…, not with {self.preference_loss}")
        return self
