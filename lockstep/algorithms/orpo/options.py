"""The options of ORPO."""

from __future__ import annotations

from typing import final

from pydantic import Field, PositiveFloat

from lockstep.algorithms.supervised import LearnedPairs, PairsRecipe


class ORPOSection(LearnedPairs):
    """Odds ratio preference optimization (Hong et al. 2024); see docs/algorithms/orpo.md."""

    odds_ratio_weight: PositiveFloat = Field(
        default=0.1,
        description=("λ: weight of the odds ratio, added to the likelihood of chosen answers"),
    )


@final
class ORPORecipe(PairsRecipe):
    """`algorithm: orpo`"""

    section = "orpo"
    orpo: ORPOSection
