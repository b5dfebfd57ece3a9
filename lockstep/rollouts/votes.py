"""Votes for maj@k: groups of responses to a question that give the same answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lockstep.rewards.base import CutOffReward, Reward
from lockstep.rewards.math_reward import MathReward
from lockstep.rewards.math_verifier import verify
from lockstep.rewards.reward_model import RewardModelScorer

Votes = Callable[[str, Sequence[str], Sequence[float | None]], list[str | None]]
"""Maps a prompt, responses to it and their rewards to votes: equal answers give equal text; None: no vote."""


def votes_of(reward: Reward | RewardModelScorer) -> Votes | None:
    """Returns what groups responses by their answer; None for a reward that extracts no answer."""
    if isinstance(reward, CutOffReward):
        return votes_of(reward.reward)
    return MathVotes(reward) if isinstance(reward, MathReward) else None


class MathVotes:
    """Groups answers that math-verify finds equal, named by the first of them in the order of the responses.

    Right responses are one group, since all equal the right answer. A response without a readable answer has no vote.

    Args:
        reward: Finds the answer in a response.
    """

    def __init__(self, reward: MathReward) -> None:
        self._reward = reward

    def __call__(self, prompt: str, responses: Sequence[str], rewards: Sequence[float | None]) -> list[str | None]:
        """See `Votes`."""
        found = [self._reward.extract_answer(response, prompt) for response in responses]
        right = next((text for text, reward in zip(found, rewards, strict=True) if reward), None)
        wrong = [text for text, reward in zip(found, rewards, strict=True) if text is not None and reward == 0]
        groups = _groups(wrong)
        return [
            right if reward else None if reward is None or text is None else groups[text]
            for text, reward in zip(found, rewards, strict=True)
        ]


def _groups(texts: Sequence[str]) -> dict[str, str | None]:
    """Maps each text to the first one with an equal answer; None if no answer can be read."""
    groups: dict[str, str | None] = {}
    for text in dict.fromkeys(texts):
        if verify(text, text):
            names = dict.fromkeys(name for name in groups.values() if name is not None)
            groups[text] = next((name for name in names if verify(name, text)), text)
        else:
            groups[text] = None
    return groups
