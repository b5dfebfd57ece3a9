"""Kinds of recipes, by what their runs have; unions are closed, so a new recipe without a kind is a type error."""

from __future__ import annotations

from typing import assert_never

from lockstep.algorithms.distill.options import DistillRecipe
from lockstep.algorithms.dpo.options import DPORecipe
from lockstep.algorithms.grpo.options import GRPORecipe
from lockstep.algorithms.ppo.options import PPORecipe
from lockstep.algorithms.reward_model.options import RewardModelRecipe
from lockstep.algorithms.self_rewarding.options import SelfRewardingRecipe
from lockstep.algorithms.sft.options import SFTRecipe
from lockstep.config.run import Bound

PolicyRecipe = PPORecipe | GRPORecipe
"""Of algorithms that improve a policy by the clipped objective."""

SamplingRecipe = PolicyRecipe | SelfRewardingRecipe | DistillRecipe
"""Of runs with a sampler, for what they learn from or for what they validate."""

TrainingRecipe = SamplingRecipe | SFTRecipe | DPORecipe | RewardModelRecipe
"""Of all runs that train."""


def sampling_recipe(recipe: TrainingRecipe) -> SamplingRecipe | None:
    """The recipe, if its run has a sampler."""
    match recipe:
        case PPORecipe() | GRPORecipe() | SelfRewardingRecipe() | DistillRecipe():
            return recipe
        case SFTRecipe() | DPORecipe() | RewardModelRecipe():
            return None
        case _:
            assert_never(recipe)


def policy_recipe(recipe: TrainingRecipe) -> PolicyRecipe | None:
    """The recipe, if its algorithm improves a policy by the clipped objective."""
    match recipe:
        case PPORecipe() | GRPORecipe():
            return recipe
        case SelfRewardingRecipe() | DistillRecipe() | SFTRecipe() | DPORecipe() | RewardModelRecipe():
            return None
        case _:
            assert_never(recipe)


def has_critic(recipe: TrainingRecipe) -> bool:
    """Whether a critic learns beside the policy."""
    match recipe:
        case PPORecipe():
            return True
        case GRPORecipe() | SelfRewardingRecipe() | DistillRecipe() | SFTRecipe() | DPORecipe() | RewardModelRecipe():
            return False
        case _:
            assert_never(recipe)


def is_one_step_ahead(recipe: TrainingRecipe) -> bool:
    """Whether the sampler works while the learner does."""
    policy = policy_recipe(recipe)
    return policy is not None and policy.options.one_step_ahead


def acceptance_of(recipe: TrainingRecipe) -> tuple[Bound, ...]:
    """The bounds that `lockstep check` reads."""
    match recipe:
        case PPORecipe() | GRPORecipe() | SelfRewardingRecipe() | DistillRecipe() | DPORecipe() | RewardModelRecipe():
            return recipe.acceptance
        case SFTRecipe():
            return ()
        case _:
            assert_never(recipe)
