"""The options of GRPO and its relatives."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal, assert_never

from pydantic import Field

from lockstep.algorithms.policy_gradient.options import PolicyGradientRecipe, PolicyGradientSection
from lockstep.config.section import rule
from lockstep.core.types import BaselineKind, LossMean, ScaleRewards

if TYPE_CHECKING:
    from torch import Tensor

    from lockstep.core.batch import Batch
    from lockstep.losses.base import Loss


class GRPOSection(PolicyGradientSection):
    """Group relative policy optimization (Shao et al. 2024); see docs/algorithms/grpo.md."""

    whiten_advantages: bool = Field(
        default=False,
        description=("normalize the advantages of a step to mean 0 and variance 1 (REINFORCE++)"),
    )
    baseline: BaselineKind = Field(
        default="mean",
        description=(
            "baseline subtracted from a reward: mean of its group, mean of the other responses "
            "(RLOO), or none"
        ),
    )
    scale_rewards: ScaleRewards = Field(
        default="group",
        description=(
            "divide by the standard deviation of the group, of the other responses in it "
            "(NeMo RL's GRPO), or of the step; none: Dr. GRPO, RLOO"
        ),
    )
    loss_mean: LossMean = Field(
        default="tokens",
        description=(
            "mean over all tokens (DAPO); mean over responses of the mean over tokens "
            "(GRPO, GSPO); or mean over responses of token sums divided by "
            "sampling.max_tokens (Dr. GRPO)"
        ),
    )
    importance_sampling_level: Literal["token", "sequence"] = Field(
        default="token",
        description="ratio per token, or the geometric mean over a response (GSPO)",
    )
    loss: Literal["clip", "cispo"] = Field(
        default="clip",
        description="the clipped objective, or log π weighted by the clipped ratio (CISPO)",
    )

    @property
    def has_sequence_ratio(self) -> bool:
        """True if importance ratios are per response instead of per token."""
        match self.importance_sampling_level:
            case "token":
                return False
            case "sequence":
                return True
            case _:
                assert_never(self.importance_sampling_level)

    @property
    def is_cispo(self) -> bool:
        """True if the surrogate is CISPO's weighted log π."""
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
            idle["clip"] = "with loss: cispo, which uses only clip_high"
        if self.whiten_advantages and self.scale_rewards == "batch":
            idle["scale_rewards"] = (
                "with whiten_advantages, which divides by the step's standard deviation anyway"
            )
        if self.overlong_filtering and self.baseline == "none":
            idle["truncation_penalty"] = (
                "with overlong_filtering, which removes truncated responses from the loss"
            )
        return idle

    @rule
    def _rewards_that_are_divided_are_compared(self) -> None:
        if self.baseline == "none" and self.scale_rewards != "none":
            raise ValueError(
                f"scale_rewards {self.scale_rewards} divides by a standard deviation that may be "
                "near 0, which needs a baseline; set scale_rewards: none, or a baseline"
            )

    @rule
    def _others_are_compared_with(self) -> None:
        if self.scale_rewards == "others" and self.baseline != "leave_one_out":
            raise ValueError(
                "scale_rewards: others requires baseline: leave_one_out, but baseline is "
                f"{self.baseline}; set both, or scale_rewards: group"
            )

    @rule
    def _groups_have_several(self) -> None:
        if self.num_generations < 2 and self.baseline != "none":
            raise ValueError(f"baseline {self.baseline} requires num_generations of 2 or more")

    @rule
    def _cispo_is_of_tokens(self) -> None:
        if self.loss == "cispo" and (
            self.importance_sampling_level == "sequence" or self.dual_clip is not None
        ):
            raise ValueError("loss: cispo does not support dual_clip or sequence ratios")


class PolicyGradient(PolicyGradientRecipe):
    """`algorithm: grpo`; subclass it to change only the advantages or the loss.

    See docs/guides/own_algorithm.md.
    """

    section = "grpo"
    grpo: GRPOSection

    @property
    def options(self) -> GRPOSection:
        return self.grpo

    def advantages(self, batch: Batch) -> Tensor:
        """Computes advantages by comparing each response with the others to its prompt.

        If the KL is part of the reward, a token is charged for itself and later tokens, A_t = (r −
        β·Σ_(i≥t) KL_i − b)/s, because it does not affect earlier ones (REINFORCE++, Hu 2025). The
        baseline b and the standard deviation s are computed from full responses, r − β·Σ_i KL_i.

        Args:
            batch: Scored responses; responses to one prompt are neighbors. `batch["shaped_score"]`
                has their rewards [B]. It is 0 for a response without a verdict, whose
                `batch["score"]` is NaN and which is not trained on.

        Returns:
            One advantage per response [B], used for all its tokens, or one per token [N].
        """
        from lockstep.objectives.group import group_advantage
        from lockstep.objectives.masks import sum_before

        score_B = batch["shaped_score"]
        if "kl_penalty" in batch.token:
            score_B = score_B - batch.per_sample(batch["kl_penalty"])
        advantage_B, slope_B = group_advantage(
            score_B,
            batch["score"].isfinite(),
            self.grpo.num_generations,
            baseline=self.grpo.baseline,
            scale=self.grpo.scale_rewards,
        )
        if "kl_penalty" not in batch.token:
            return advantage_B
        paid_N = sum_before(batch["kl_penalty"], batch.lengths)
        return advantage_B[batch.row] + slope_B[batch.row] * paid_N

    def policy_loss(self) -> Loss:
        """The policy's loss, before the KL to the reference policy is added.

        Returns:
            A frozen dataclass; see `lockstep.Loss`.
        """
        return replace(
            self.build_clipped_loss(),
            mean=self.grpo.loss_mean,
            max_tokens=self.sampling.max_tokens,
            sequence_ratio=self.grpo.has_sequence_ratio,
            cispo=self.grpo.is_cispo,
        )

    @rule
    def _responses_differ(self) -> None:
        if not self.sampling.temperature and self.grpo.baseline != "none" and not self.environment:
            raise ValueError(
                "sampling.temperature 0 gives identical responses to a prompt, whose advantages "
                "are 0; raise it"
            )

    @rule
    def _require_kl_in_advantages(self) -> None:
        kl = self.grpo.kl
        compute = type(self).advantages
        if kl is None or kl.in_loss or compute is PolicyGradient.advantages:
            return
        code = compute.__code__
        if "super" not in code.co_names and "kl_penalty" not in code.co_consts:
            raise ValueError(
                f'{type(self).__name__}.advantages does not subtract batch["kl_penalty"], the '
                "KL term of the reward with kl.placement=reward; set placement to loss"
            )
