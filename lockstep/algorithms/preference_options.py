"""Options shared by algorithms that learn from pairs of chosen and rejected answers."""

from __future__ import annotations

from typing import Annotated, assert_never

from pydantic import Field, NonNegativeFloat, PositiveFloat

from lockstep.config.section import Section, rule
from lockstep.core.types import PreferenceLoss


class PreferenceSection(Section):
    """The options of a pair loss; see `lockstep.objectives.preference` for the losses."""

    preference_loss: PreferenceLoss = Field(
        default="dpo", description="loss of a pair; scale and rpo_… use its scores"
    )
    label_smoothing: Annotated[float, Field(ge=0.0, lt=0.5)] = Field(
        default=0.0,
        description=("dpo, robust: ε, the assumed share of mislabeled pairs"),
    )
    preference_loss_weight: NonNegativeFloat = Field(
        default=1.0, description="weight of the preference loss"
    )
    sft_loss_weight: NonNegativeFloat = Field(
        default=0.0,
        description="weight of the negative log-likelihood of chosen answers",
    )
    preference_average_log_probs: bool = Field(
        default=False,
        description=("use means over an answer's tokens instead of sums in the preference loss"),
    )
    sft_average_log_probs: bool | None = Field(
        default=None,
        description=(
            "the same for the likelihood of chosen answers; null: as preference_average_log_probs"
        ),
    )
    gt_reward_scale: PositiveFloat = Field(
        default=1.0,
        description=(
            "rpo_…: ratio of the target difference of implicit rewards to the difference of scores"
        ),
    )

    @property
    def reads_scores(self) -> bool:
        """True if pairs need scores for their answers."""
        match self.preference_loss:
            case "dpo" | "robust" | "ipo":
                return False
            case "scale" | "rpo_sq" | "rpo_bwd_kl" | "rpo_fwd_kl":
                return True
            case _:
                assert_never(self.preference_loss)

    @property
    def idle_options(self) -> dict[str, str]:
        idle: dict[str, str] = {}
        if not self.preference_loss.startswith("rpo_"):
            idle["gt_reward_scale"] = (
                f"with preference_loss: {self.preference_loss}; it is for rpo_…"
            )
        if self.preference_loss not in ("dpo", "robust"):
            idle["label_smoothing"] = (
                f"with preference_loss: {self.preference_loss}; it is for dpo and robust"
            )
        if not self.sft_loss_weight:
            idle["sft_average_log_probs"] = "if sft_loss_weight is 0"
        if not self.preference_loss_weight:
            idle |= dict.fromkeys(
                ("preference_loss", "gt_reward_scale", "label_smoothing"),
                "if preference_loss_weight is 0",
            )
            if self.sft_average_log_probs is not None:
                idle["preference_average_log_probs"] = "if preference_loss_weight is 0"
        return idle

    @rule
    def _robust_says_against_what(self) -> None:
        if self.preference_loss == "robust" and not self.label_smoothing:
            raise ValueError(
                "preference_loss: robust without label_smoothing equals dpo; set label_smoothing, "
                "or use dpo"
            )

    @rule
    def _something_is_learned(self) -> None:
        if not self.preference_loss_weight and not self.sft_loss_weight:
            raise ValueError(
                "preference_loss_weight and sft_loss_weight are both 0, so nothing is learned; "
                "raise one of them"
            )
