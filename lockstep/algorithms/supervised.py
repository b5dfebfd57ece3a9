"""Base classes of recipes that train on data without sampling: answers or pairs."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, PositiveInt

from lockstep.algorithms.base import BuiltInAlgorithm
from lockstep.algorithms.roles import Load, ModelRole
from lockstep.config import Optimizer, Section
from lockstep.data.pair_options import PairSection


class SupervisedRecipe(BuiltInAlgorithm):
    """A recipe that trains on data without sampling."""

    optimizer: Optimizer

    @property
    def policy_role(self) -> ModelRole:
        """The policy π."""
        return ModelRole("policy", "logits", self.learner, self.optimizer)

    @property
    def idle_options(self) -> dict[str, str]:
        return super().idle_options | {"data.answer": "if nothing is rewarded"}


class LearnedPairs(Section):
    """Number of pairs per optimizer step, and their maximum length."""

    global_batch_size: PositiveInt = Field(description="pairs per optimizer step")
    max_tokens: PositiveInt = Field(description="longest prompt plus answer")


class PairsRecipe(SupervisedRecipe):
    """A recipe that trains on pairs."""

    section: ClassVar[str]
    """The key of the algorithm's own section."""
    data: PairSection  # pyright: ignore[reportIncompatibleVariableOverride] — frozen, so safe to narrow

    @property
    def pairs(self) -> LearnedPairs:
        """The algorithm's own section."""
        section = getattr(self, self.section)
        assert isinstance(section, LearnedPairs), (
            "the section of an algorithm that learns from pairs"
        )
        return section

    @property
    def length_option(self) -> str:
        """The option that limits the length of pairs."""
        return f"{self.section}.max_tokens"

    @property
    def trained_role(self) -> ModelRole:
        """The model that learns: the policy π."""
        return self.policy_role

    @property
    def reference_role(self) -> ModelRole | None:
        """The reference policy π_ref; None: not used by the loss."""
        return None

    @property
    def models(self) -> tuple[ModelRole, ...]:
        if self.reference_role is None:
            return (self.trained_role,)
        return (self.trained_role, self.reference_role)

    @property
    def largest_step(self) -> Load:
        size = self.pairs.global_batch_size
        return Load(
            self.pairs.max_tokens, 2, size, scored=0 if self.reference_role is None else size
        )

    @property
    def lengths(self) -> dict[str, int]:
        return {self.length_option: self.pairs.max_tokens}

    @property
    def longest_demonstration(self) -> int | None:
        return self.pairs.max_tokens
