"""The options of GRPO and its relatives."""

from __future__ import annotations

from typing import Literal, assert_never, final

from pydantic import Field

from lockstep.algorithms.policy_gradient.options import PolicyGradient, PolicyGradientRecipe
from lockstep.config.section import rule
from lockstep.core.types import Baseline, LossMean, ScaleRewards


class GRPOSection(PolicyGradient):
    """Group-relative policy optimization (Shao et al. 2024) and relatives; see docs/algorithms/grpo.md."""

    whiten_advantages: bool = Field(
        default=False, description="advantages of a step get mean 0 and variance 1 (REINFORCE++)"
    )
    baseline: Baseline = Field(
        default="mean",
        description="subtracted from a reward: the mean of its group, the mean of the others (RLOO), nothing",
    )
    scale_rewards: ScaleRewards = Field(
        default="group",
        description="then divided by: the standard deviation of the group, of the others in it (NeMo RL's GRPO), or of "
        "the step; none: Dr. GRPO, RLOO",
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

    @property
    def has_sequence_ratio(self) -> bool:
        """True if the importance ratio is that of a whole response."""
        match self.importance_sampling_level:
            case "token":
                return False
            case "sequence":
                return True
            case _:
                assert_never(self.importance_sampling_level)

    @property
    def is_cispo(self) -> bool:
        """True if the surrogate is CISPO's, log π."""
        match self.loss:
            case "clip":
                return False
            case "cispo":
                return True
            case _:
                assert_never(self.loss)

    @property
    def idle_options(self) -> dict[str, str]:
        idle = super().idle_options
        if self.loss == "cispo" and self.clip_high is not None:
            idle["clip"] = "beside clip_high, which alone bounds the ratio of loss: cispo"
        if self.whiten_advantages and self.scale_rewards == "batch":
            idle["scale_rewards"] = "beside whiten_advantages, which divides by a deviation of the step anyway"
        if self.overlong_filtering and self.baseline == "none":
            idle["truncation_penalty"] = "where overlong_filtering takes truncated responses out of the loss"
        return idle

    @rule
    def _rewards_that_are_divided_are_compared(self) -> None:
        if self.baseline == "none" and self.scale_rewards != "none":
            raise ValueError(
                f"scale_rewards {self.scale_rewards} divides by how far rewards differ, which may be 0, and without a "
                "baseline that makes them huge; say scale_rewards: none, or a baseline"
            )

    @rule
    def _others_are_compared_with(self) -> None:
        if self.scale_rewards == "others" and self.baseline != "leave_one_out":
            raise ValueError(
                f"scale_rewards others is the deviation of those whose mean is baseline: leave_one_out, and the "
                f"baseline is {self.baseline}; say both of the others, or scale_rewards: group"
            )

    @rule
    def _groups_have_several(self) -> None:
        if self.num_generations < 2 and self.baseline != "none":
            raise ValueError(
                f"baseline {self.baseline} is of the responses to a prompt, so num_generations must be 2 or more"
            )

    @rule
    def _cispo_is_of_tokens(self) -> None:
        if self.loss == "cispo" and (self.importance_sampling_level == "sequence" or self.dual_clip is not None):
            raise ValueError("loss: cispo weighs each token, and goes with neither dual_clip nor sequence ratios")


@final
class GRPORecipe(PolicyGradientRecipe):
    """`algorithm: grpo`"""

    section = "grpo"
    grpo: GRPOSection

    @property
    def options(self) -> GRPOSection:
        return self.grpo
