"""The options of PPO with a critic."""

from __future__ import annotations

from dataclasses import replace
from typing import final

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat

from lockstep.algorithms.policy_gradient.options import PolicyGradientRecipe, PolicyGradientSection
from lockstep.algorithms.roles import ModelRole
from lockstep.config.optimizer import Optimizer
from lockstep.config.parallel import Parallel
from lockstep.config.section import Probability, rule
from lockstep.config.sources import ModelFolder


class PPOSection(PolicyGradientSection):
    """Proximal policy optimization (Schulman et al. 2017); see docs/algorithms/ppo.md."""

    critic_warmup_steps: NonNegativeInt = Field(
        default=0, description="number of first steps that train only the critic"
    )
    gamma: Probability = Field(default=1.0, description="discount per token")
    gae_lambda: Probability = Field(
        default=0.95, description="λ of generalized advantage estimation"
    )
    gae_lambda_policy: Probability | None = Field(
        default=None, description="λ for advantages, if different (VAPO)"
    )
    gae_lambda_value: Probability | None = Field(
        default=None, description="λ for the critic's returns, if different (VAPO: 1)"
    )
    length_adaptive_alpha: NonNegativeFloat = Field(
        default=0.0, description="advantages with λ = 1 − 1/(α·length) (VAPO: 0.05); 0: off"
    )
    bootstrap_truncated: bool = Field(
        default=False,
        description="bootstrap truncated responses from the critic's value of the last state",
    )
    value_clip: PositiveFloat | None = Field(default=0.2, description="null: plain squared error")

    @property
    def idle_options(self) -> dict[str, str]:
        idle = super().idle_options
        advantages = self.gae_lambda_policy is not None or self.length_adaptive_alpha > 0
        if advantages and self.gae_lambda_value is not None:
            idle["gae_lambda"] = "if gae_lambda_policy and gae_lambda_value are both set"
        if self.overlong_filtering:
            reason = "with overlong_filtering, which removes truncated responses from the loss"
            idle |= dict.fromkeys(("bootstrap_truncated", "truncation_penalty"), reason)
        return idle

    @rule
    def _one_lambda_for_advantages(self) -> None:
        if self.length_adaptive_alpha and self.gae_lambda_policy is not None:
            raise ValueError("length_adaptive_alpha requires gae_lambda_policy=null")


class CriticSection(Optimizer):
    """AdamW options of the critic, and its layout if different from the policy's."""

    parallel: Parallel | None = Field(
        default=None,
        description=(
            "layout of the critic, with the same number of ranks as learner.parallel; null: the "
            "same layout"
        ),
    )


@final
class PPORecipe(PolicyGradientRecipe):
    """`algorithm: ppo`"""

    section = "ppo"
    ppo: PPOSection
    critic: CriticSection
    critic_model: ModelFolder | None = Field(
        default=None,
        description="the critic's initial model, such as a reward model; null: the policy's",
    )

    @property
    def options(self) -> PPOSection:
        return self.ppo

    @rule
    def _a_declared_reward_is_whole(self) -> None:
        if (
            self.ppo.bootstrap_truncated
            and self.reward is not None
            and isinstance(self.reward.cut_off, float)
        ):
            raise ValueError(
                f"reward.cut_off={self.reward.cut_off:g} and ppo.bootstrap_truncated both set the "
                "reward of a truncated response; set only one"
            )

    @property
    def policy_role(self) -> ModelRole:
        return replace(super().policy_role, idle_steps=self.ppo.critic_warmup_steps)

    @property
    def critic_role(self) -> ModelRole:
        """The critic V."""
        path = None if self.critic_model is None else self.critic_model.path
        learner = self.learner
        if self.critic.parallel is not None:
            learner = learner.lay_out(self.critic.parallel, "critic.parallel")
        return ModelRole("critic", "value", learner, self.critic, path)

    @property
    def models(self) -> tuple[ModelRole, ...]:
        policy, *others = super().models
        return policy, self.critic_role, *others
