"""The common part of recipes that learn from pairs of answers without a reference policy."""

from __future__ import annotations

from lockstep.algorithms.pairs import PairsRecipe
from lockstep.algorithms.roles import ModelRole


class ReferenceFreeRecipe(PairsRecipe):
    """A recipe whose only model is the policy."""

    purpose = "learns to prefer the chosen answers to the rejected ones"

    @property
    def policy_role(self) -> ModelRole:
        """The policy π."""
        return ModelRole("policy", "logits", self.learner, self.optimizer)

    @property
    def models(self) -> tuple[ModelRole, ...]:
        return (self.policy_role,)

    @property
    def longest_demonstration(self) -> int:
        return self.pairs.max_tokens
