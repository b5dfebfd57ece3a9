"""The options of SimPO."""

from __future__ import annotations

from typing import final

from pydantic import Field, NonNegativeFloat, PositiveFloat

from lockstep.algorithms.supervised import LearnedPairs, PairsRecipe


class SimPOSection(LearnedPairs):
    """Simple preference optimization (Meng et al. 2024); see docs/algorithms/simpo.md."""

    beta: PositiveFloat = Field(
        default=2.0,
        description="β: from the mean log-probability of an answer's tokens to its reward",
    )
    margin: NonNegativeFloat = Field(
        default=1.0,
        description="γ: the reward of the chosen answer should be larger by this, at least",
    )
    sft_loss_weight: NonNegativeFloat = Field(
        default=0.0,
        description="of −log π(chosen), the mean over its tokens, beside it; the paper has none",
    )


@final
class SimPORecipe(PairsRecipe):
    """`algorithm: simpo`"""

    section = "simpo"
    simpo: SimPOSection
