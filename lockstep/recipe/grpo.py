"""The options of GRPO and its relatives."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from lockstep.recipe.policy_gradient import PolicyGradient, PolicyGradientRecipe

Baseline = Literal["mean", "leave_one_out", "none"]
ScaleRewards = Literal["group", "batch", "none"]
LossMean = Literal["tokens", "responses", "constant"]


class GRPO(PolicyGradient):
    """Group-relative policy optimisation (Shao et al. 2024) and relatives; see docs/algorithms/grpo.md."""

    whiten_advantages: bool = Field(
        default=False, description="advantages of a step get mean 0 and variance 1 (REINFORCE++)"
    )
    baseline: Baseline = Field(
        default="mean",
        description="subtracted from a reward: the mean of its group, the mean of the others (RLOO), nothing",
    )
    scale_rewards: ScaleRewards = Field(
        default="group",
        description="then divided by: the standard deviation of the group, or of the step; none: Dr. GRPO, RLOO",
    )
    loss_mean: LossMean = Field(
        default="tokens",
        description="over all tokens (DAPO); over responses, of the mean over a response's tokens (GRPO, GSPO); or "
        "over responses, of sums divided by sampling.max_tokens (Dr. GRPO)",
    )
    importance_sampling_level: Literal["token", "sequence"] = Field(
        default="token", description="the ratio is that of a token, or the geometric mean of a response's (GSPO)"
    )
    loss: Literal["clip", "cispo"] = Field(
        default="clip", description="the clipped objective, or log π weighed by the clipped ratio (CISPO)"
    )

    @model_validator(mode="after")
    def _groups_have_several(self) -> GRPO:
        if self.num_generations < 2 and self.baseline != "none":
            raise ValueError(
                f"baseline {self.baseline} is of the responses to a prompt, so num_generations must be 2 or more"
            )
        return self

    @model_validator(mode="after")
    def _cispo_is_of_tokens(self) -> GRPO:
        if self.loss == "cispo" and (self.importance_sampling_level == "sequence" or self.dual_clip is not None):
            raise ValueError("loss: cispo weighs each token, and goes with neither dual_clip nor sequence ratios")
        return self


class GRPORecipe(PolicyGradientRecipe):
    """`algorithm: grpo`"""

    algorithm: Literal["grpo"] = Field(description="what is run")
    grpo: GRPO

    @property
    def options(self) -> GRPO:
        return self.grpo
