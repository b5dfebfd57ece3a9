"""Rewards that combine others: by the verifier that a row names, or as a weighted sum."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lockstep.core.metrics import Metrics
from lockstep.core.types import Prompt
from lockstep.data.templates import read_field
from lockstep.rewards.base import DetailedReward, Reward, RewardResults, compute_reward_results


@dataclass(frozen=True)
class ByRow(DetailedReward):
    """Rewards by the verifier that the row names; None if the row names none.

    Attributes:
        field: Field of the row with the verifier's name.
        verifiers: Rewards by name.
    """

    field: str
    verifiers: Mapping[str, Reward]

    def compute_results(
        self, prompts: Sequence[Prompt], responses: Sequence[str], answers: Sequence[str]
    ) -> RewardResults:
        """Rewards each response by its verifier."""
        rewards: list[float | None] = [None] * len(prompts)
        metrics = Metrics()
        for name, verifier in self.verifiers.items():
            own = [
                i for i, prompt in enumerate(prompts) if read_field(prompt.row, self.field) == name
            ]
            found = compute_reward_results(
                verifier,
                [prompts[i] for i in own],
                [responses[i] for i in own],
                [answers[i] for i in own],
            )
            for i, reward in zip(own, found.rewards, strict=True):
                rewards[i] = reward
            metrics += found.metrics
        return RewardResults(rewards, metrics=metrics)


@dataclass(frozen=True)
class WeightedPart:
    """A part of a sum: a reward and its weight; 0: only measured."""

    reward: Reward
    weight: float


@dataclass(frozen=True)
class WeightedSum(DetailedReward):
    """The weighted sum of rewards, in float64; None if a part with weight has no verdict.

    Attributes:
        parts: Parts by name.
    """

    parts: Mapping[str, WeightedPart]

    def compute_results(
        self, prompts: Sequence[Prompt], responses: Sequence[str], answers: Sequence[str]
    ) -> RewardResults:
        """Rewards responses by each part and sums them."""
        parts: dict[str, list[float | None]] = {}
        counted: list[tuple[float, list[float | None]]] = []
        metrics = Metrics()
        for name, part in self.parts.items():
            found = compute_reward_results(part.reward, prompts, responses, answers)
            parts[name] = found.rewards
            metrics += found.metrics.with_prefix(name)
            if part.weight:
                counted.append((part.weight, found.rewards))
        rewards: list[float | None] = [None] * len(prompts)
        for index in range(len(prompts)):
            own = [(weight, scores[index]) for weight, scores in counted]
            known = [weight * score for weight, score in own if score is not None]
            if len(known) == len(own):
                rewards[index] = math.fsum(known)  # independent of their order
        return RewardResults(rewards, parts, metrics)
