"""The protocol of rewards: a number for each response, or None, "no verdict", where it could not be
decided.

A response without a verdict counts neither for nor against anything.
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
    """A reward function that cannot be found or breaks its contract; the message says which and
    where.
    """


class RewardLost(RewardError):
    """A reward function could not be asked, for a reason that may pass; the same command resumes
    the run.
    """

    exit_code = exit_codes.CRASH


class Reward(Protocol):
    """A function that scores responses."""

    def __call__(
        self, prompts: Sequence[Prompt], responses: Sequence[str], answers: Sequence[str]
    ) -> list[float | None]:
        """Returns one reward per response; None: no verdict.

        Args:
            prompts: The prompts, one per response.
            responses: Text as it continues the prompt, without the stop token.
            answers: The right answers, from `data.answer`.
        """
        ...


@dataclass(frozen=True)
class Verdicts:
    """Rewards of responses, and what else is known of them.

    Attributes:
        rewards: One for each; None: no verdict.
        parts: Rewards by the names of a sum's parts.
        metrics: Metrics of judges that were asked.
    """

    rewards: list[float | None]
    parts: Mapping[str, list[float | None]] = field(default_factory=dict)
    metrics: Metrics = field(default_factory=Metrics)


class DetailedReward(ABC):
    """A reward that says more of responses than a number."""

    @abstractmethod
    def judge(
        self, prompts: Sequence[Prompt], responses: Sequence[str], answers: Sequence[str]
    ) -> Verdicts:
        """Rewards responses; arguments as of `Reward`."""

    def __call__(
        self, prompts: Sequence[Prompt], responses: Sequence[str], answers: Sequence[str]
    ) -> list[float | None]:
        """See `Reward`."""
        return self.judge(prompts, responses, answers).rewards


@dataclass(frozen=True)
class NoReward:
    """No verdict on any response: something else scores."""

    def __call__(
        self, prompts: Sequence[Prompt], responses: Sequence[str], answers: Sequence[str]
    ) -> list[float | None]:
        """See `Reward`."""
        return [None] * len(responses)


@dataclass(frozen=True)
class CutOffReward(DetailedReward):
    """A reward whose recipe declares what a response is worth that was cut off; the rollouts apply
    it.

    Attributes:
        reward: Scores the other responses.
        value: The reward of a response that was cut off; None: `reward` scores it as it is.
    """

    reward: Reward
    value: float | None

    @property
    def is_as_is(self) -> bool:
        """True if responses that were cut off are scored as they are."""
        return self.value is None

    def judge(
        self, prompts: Sequence[Prompt], responses: Sequence[str], answers: Sequence[str]
    ) -> Verdicts:
        """Rewards responses as if none were cut off."""
        return judge(self.reward, prompts, responses, answers)


def judge(
    reward: Reward, prompts: Sequence[Prompt], responses: Sequence[str], answers: Sequence[str]
) -> Verdicts:
    """Rewards responses, and says what else the reward knows of them; arguments as of `Reward`."""
    if isinstance(reward, DetailedReward):
        return reward.judge(prompts, responses, answers)
    return Verdicts(reward(prompts, responses, answers))
