"""The common part of tasks of words: random numbers of a row, and demonstrations that judge."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pydantic import NonNegativeInt

from lockstep.config import Probability
from lockstep.config.section import rule
from lockstep.tasks.base import Task


class JudgingTask(Task):
    """A task whose demonstrations are answers, judgements of answers, and comparisons of two judgements."""

    demonstrations: NonNegativeInt
    judge_share: Probability
    compare_share: Probability

    @property
    def idle_options(self) -> dict[str, str]:
        shares = ("judge_share", "compare_share")
        return {} if self.demonstrations else dict.fromkeys(shares, "where demonstrations is 0")

    @rule
    def _shares_leave_room(self) -> None:
        if self.judge_share + self.compare_share > 1:
            raise ValueError("judge_share and compare_share are shares of the same rows; together they are above 1")


class Draws:
    """Uniform numbers of a row, one after the other."""

    def __init__(self, numbers: Sequence[float]) -> None:
        self._numbers = iter(numbers)

    def chance(self, probability: float) -> bool:
        return self.share() < probability

    def pick(self, options: Sequence[str]) -> str:
        return options[int(self.share() * len(options))]

    def take(self, options: list[str]) -> str:
        """Removes a random option from the list and returns it."""
        return options.pop(int(self.share() * len(options)))

    def between(self, low: int, high: int) -> int:
        return low + int(self.share() * (high - low + 1))

    def share(self) -> float:
        return next(self._numbers)


def join_words(words: Iterable[str]) -> str:
    """Joins words with a space in front of each, so that a word is the same token at any place."""
    return "".join(f" {word}" for word in words)
