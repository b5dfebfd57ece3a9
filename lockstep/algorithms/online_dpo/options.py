"""The options of online DPO."""

from __future__ import annotations

from typing import Annotated, final

from pydantic import Field, PositiveFloat, PositiveInt

from lockstep.algorithms.preference_options import PreferenceSection
from lockstep.algorithms.rewarded import RewardedRecipe
from lockstep.algorithms.roles import Load, ModelRole
from lockstep.config import Optimizer
from lockstep.config.section import rule


class OnlineDPOSection(PreferenceSection):
    """DPO on the policy's own answers (Guo et al. 2024); see docs/algorithms/online_dpo.md."""

    num_prompts_per_step: PositiveInt = Field(
        le=1_000_000,
        description=("prompts per step; each gives at most one pair to the optimizer step"),
    )
    num_generations: Annotated[int, Field(ge=2)] = Field(
        default=2, description="answers per prompt; the best and the worst form a pair"
    )
    ref_policy_kl_penalty: PositiveFloat = Field(
        default=0.1,
        description=(
            "β: strength of the penalty for leaving the reference policy (the initial model)"
        ),
    )

    @property
    def response_count(self) -> int:
        """Number of answers per step."""
        return self.num_prompts_per_step * self.num_generations


@final
class OnlineDPORecipe(RewardedRecipe):
    """`algorithm: online_dpo`"""

    online_dpo: OnlineDPOSection
    optimizer: Optimizer

    @property
    def policy_role(self) -> ModelRole:
        """The policy π."""
        return ModelRole("policy", "logits", self.learner, self.optimizer)

    @property
    def models(self) -> tuple[ModelRole, ...]:
        judge = self.reward_role
        return (self.policy_role, self.frozen_reference, *(() if judge is None else (judge,)))

    @property
    def largest_step(self) -> Load:
        longest = self.data.max_prompt_tokens + self.sampling.max_tokens
        its = self.online_dpo
        return Load(
            longest,
            2,
            its.num_prompts_per_step,
            scored=-(-its.response_count // 2),
            generated=longest,
            sampling=self.sampling.params(),
            shared=self.data.max_prompt_tokens,
            sequences_per_prompt=2,
        )

    @rule
    def _one_reward_ranks(self) -> None:
        if (self.reward is None) == (self.reward_model is None):
            raise ValueError(
                "set exactly one of reward and reward_model, to rank the answers to a prompt"
            )

    @rule
    def _answers_differ(self) -> None:
        if self.sampling.temperature == 0:
            raise ValueError(
                "sampling.temperature 0 gives identical answers, which form no pair; raise it"
            )
