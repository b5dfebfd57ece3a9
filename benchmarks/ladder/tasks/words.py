"""The common part of tasks of words: random numbers of a row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


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
