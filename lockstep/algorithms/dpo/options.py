"""The options of direct preference optimization."""

from __future__ import annotations

from typing import final

from pydantic import Field, PositiveFloat

from lockstep.algorithms.preference_options import PreferenceSection
from lockstep.algorithms.roles import ModelRole
from lockstep.algorithms.supervised import LearnedPairs, PairsRecipe
from lockstep.config.section import rule


class DPOSection(LearnedPairs, PreferenceSection):
    """Direct preference optimization (Rafailov et al. 2023); see docs/guides/preferences.md."""

    ref_policy_kl_penalty: PositiveFloat = Field(
        default=0.1,
        description=(
            "β: strength of the penalty for leaving the reference policy (the initial model)"
        ),
    )


@final
class DPORecipe(PairsRecipe):
    """`algorithm: dpo`"""

    section = "dpo"
    dpo: DPOSection

    @property
    def reference_role(self) -> ModelRole:
        """The reference policy π_ref."""
        return self.frozen_reference

    @rule
    def _scores_are_there(self) -> None:
        if self.dpo.reads_scores and not self.data.score_fields:
            raise ValueError(
                f"dpo.preference_loss={self.dpo.preference_loss} needs scores; set "
                "data.chosen_score and data.rejected_score"
            )
