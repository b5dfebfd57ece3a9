"""The options of direct preference optimisation."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat, model_validator

from lockstep.config.pairs import LearnedPairs, PairsRecipe
from lockstep.config.preference import PreferenceSection


class DPO(LearnedPairs, PreferenceSection):
    """Direct preference optimisation (Rafailov et al. 2023); see docs/guides/preferences.md."""

    ref_policy_kl_penalty: PositiveFloat = Field(
        default=0.1, description="β: how dear it is to move away from the reference, which is the first model"
    )


class DPORecipe(PairsRecipe):
    """`algorithm: dpo`"""

    limit = "dpo.max_tokens"
    algorithm: Literal["dpo"] = Field(description="what is run")
    dpo: DPO

    @property
    def pairs(self) -> DPO:
        return self.dpo

    @model_validator(mode="after")
    def _scores_are_there(self) -> DPORecipe:
        if self.dpo.reads_scores and not self.data.score_fields:
            raise ValueError(
                f"dpo.preference_loss={self.dpo.preference_loss} reads scores; name their fields by data.chosen_score "
                "and data.rejected_score"
            )
        return self
