"""The reward protocol: a number for each response, or None for "no verdict".

No verdict means that the reward could not be determined; such a response is ignored.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from lockstep.core import exit_codes
from lockstep.core.errors import InputError
from lockstep.core.metrics import Metrics
from lockstep.core.types import Prompt


class RewardError(InputError):
    """A reward function cannot be found or violates its contract; the message names it."""


class RewardLost(RewardError):
    """A reward function failed temporarily; the same command resumes the run."""

    exit_code = exit_codes.CRASH


class Reward(Protocol):
    """A function that scores responses."""

    def __call__(
        self, prompts: Sequence[Prompt], responses: Sequence[str], answers: Sequence[str]
    ) -> list[float | None]:
        """Returns one reward per response; None: no verdict.

        Args:
            prompts: The prompts, one per response.
            responses: Texts that continue the prompts, without the stop token.
            answers: The right answers, from `data.answer`.
        """
        ...


@dataclass(frozen=True)
class RewardResults:
    """Rewards of responses, with parts and metrics.

    Attributes:
        rewards: One reward per response; None: no verdict.
        parts: Rewards of a sum's parts, by name.
        metrics: Metrics of judges.
    """

    rewards: list[float | None]
    parts: Mapping[str, list[float | None]] = field(default_factory=dict)
    metrics: Metrics = field(default_factory=Metrics)


class DetailedReward(ABC):
    """A reward that returns parts and metrics in addition to a number."""

    @abstractmethod
    def compute_results(
        self, prompts: Sequence[Prompt], responses: Sequence[str], answers: Sequence[str]
    ) -> RewardResults:
        """Rewards responses; arguments as in `Reward`."""

    def __call__(
        self, prompts: Sequence[Prompt], responses: Sequence[str], answers: Sequence[str]
    ) -> list[float | None]:
        """See `Reward`."""
        return self.compute_results(prompts, responses, answers).rewards


@dataclass(frozen=True)
class NoReward:
    """A reward without verdicts, used if something else scores responses."""

    def __call__(
        self, prompts: Sequence[Prompt], responses: Sequence[str], answers: Sequence[str]
    ) -> list[float | None]:
        """See `Reward`."""
        return [None] * len(responses)


@dataclass(frozen=True)
class CutOffReward(DetailedReward):
    """A reward with a declared value for truncated responses, which the rollouts apply.

    Attributes:
        reward: The reward of other responses.
        value: The reward of a truncated response; None: `reward` scores it as is.
    """

    reward: Reward
    value: float | None

    @property
    def scores_as_is(self) -> bool:
        """True if truncated responses are scored as is."""
        return self.value is None

    def compute_results(
        self, prompts: Sequence[Prompt], responses: Sequence[str], answers: Sequence[str]
    ) -> RewardResults:
        """Rewards responses as if none were truncated."""
        return compute_reward_results(self.reward, prompts, responses, answers)


def compute_reward_results(
    reward: Reward, prompts: Sequence[Prompt], responses: Sequence[str], answers: Sequence[str]
) -> RewardResults:
    """Rewards responses with parts and metrics; arguments as in `Reward`."""
    if isinstance(reward, DetailedReward):
        return reward.compute_results(prompts, responses, answers)
    return RewardResults(reward(prompts, responses, answers))
