"""The options of reward model training."""

from __future__ import annotations

from typing import final

from pydantic import Field, NonNegativeFloat

from lockstep.algorithms.roles import ModelRole
from lockstep.algorithms.supervised import LearnedPairs, PairsRecipe
from lockstep.config.section import rule


class RewardModelSection(LearnedPairs):
    """Reward model training on pairs; see docs/algorithms/reward_model.md.

    Bradley and Terry 1952; Ouyang et al. 2022.
    """

    margin: bool = Field(
        default=False,
        description=("use the difference of a pair's scores as the margin (Touvron et al. 2023)"),
    )
    center_rewards_coefficient: NonNegativeFloat = Field(
        default=0.0,
        description=(
            "weight of (r_chosen + r_rejected)², which keeps rewards around 0 (Eisenstein 2023)"
        ),
    )


@final
class RewardModelRecipe(PairsRecipe):
    """`algorithm: reward_model`"""

    section = "reward_model"
    reward_model: RewardModelSection

    @property
    def trained_role(self) -> ModelRole:
        """The reward model r."""
        return ModelRole("reward_model", "reward", self.learner, self.optimizer)

    @property
    def longest_demonstration(self) -> None:
        return None

    @rule
    def _margins_are_there(self) -> None:
        if self.reward_model.margin and not self.data.score_fields:
            raise ValueError(
                "reward_model.margin needs scores; set data.chosen_score and data.rejected_score"
            )
