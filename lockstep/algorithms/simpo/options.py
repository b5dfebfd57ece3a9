"""The options of SimPO."""

from __future__ import annotations

from typing import final

from pydantic import Field, NonNegativeFloat, PositiveFloat

from lockstep.algorithms.supervised import LearnedPairs, PairsRecipe


class SimPOSection(LearnedPairs):
    """Simple preference optimization (Meng et al. 2024); see docs/algorithms/simpo.md."""

    beta: PositiveFloat = Field(
        default=2.0,
        description="β: factor from an answer's mean token log-probability to its reward",
    )
    margin: NonNegativeFloat = Field(
        default=1.0,
        description="γ: target margin between the rewards of chosen and rejected answers",
    )
    sft_loss_weight: NonNegativeFloat = Field(
        default=0.0,
        description="weight of an added −log π(chosen), the mean over its tokens; 0 in the paper",
    )


@final
class SimPORecipe(PairsRecipe):
    """`algorithm: simpo`"""

    section = "simpo"
    simpo: SimPOSection
