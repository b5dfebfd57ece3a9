"""The options of ORPO."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from pydantic import Field, PositiveFloat

from lockstep.algorithms.pairs import LearnedPairs
from lockstep.algorithms.reference_free import ReferenceFreeRecipe

if TYPE_CHECKING:
    from lockstep.algorithms.job import Job
    from lockstep.algorithms.setup import Setup


class ORPOSection(LearnedPairs):
    """Odds ratio preference optimization (Hong et al. 2024); see docs/algorithms/orpo.md."""

    odds_ratio_weight: PositiveFloat = Field(
        default=0.1, description="λ: of the odds ratio, beside the likelihood of chosen answers"
    )


@final
class ORPORecipe(ReferenceFreeRecipe):
    """`algorithm: orpo`"""

    limit = "orpo.max_tokens"
    orpo: ORPOSection

    @property
    def pairs(self) -> ORPOSection:
        return self.orpo

    def open(self, setup: Setup) -> Job:
        from lockstep.algorithms.open_reference_free import open_reference_free
        from lockstep.losses.reference_free import ORPOLoss

        return open_reference_free(self, setup, ORPOLoss(self.orpo.odds_ratio_weight))
