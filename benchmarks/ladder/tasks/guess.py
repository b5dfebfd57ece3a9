"""A number game of several turns: the policy guesses, and hears whether the number is higher or lower.

    1 to 31                     the prompt
    16? higher                  what the policy writes ends at "?"; the rest of a line is the game's answer
    24? lower
    20?                         found: reward 1

The best play is known: halving finds any of 2^turns − 1 numbers. Demonstrations guess at random among the numbers that
are still possible, so a policy that learned from them plays by the rules, and has to find out how to play well.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import Field, NonNegativeInt, PositiveInt

from lockstep.tasks.base import Task, TaskFiles, sample_uniforms, write_rows

_BLOCK = 1024


class Guess(Task):
    """The task of the number game. There is one game, so nothing is held out: validation plays it with every number."""

    shared = ("largest", "turns")
    largest: PositiveInt = Field(default=15, description="the number is one of 1 to this, each as likely")
    turns: PositiveInt = Field(default=4, description="guesses in which it has to be found")
    repeats: PositiveInt = Field(default=48, description="validation episodes with each number")
    demonstrations: NonNegativeInt = Field(default=0, description="games for SFT, played at random; 0: none")
    seed: int = Field(default=0, description="of the demonstrations")

    @property
    def best_reward(self) -> float:
        return best_chance(self.largest, self.turns)

    def write(self, folder: Path) -> TaskFiles:
        files = TaskFiles.name_in(folder, demonstrations=self.demonstrations > 0)
        rows = [self._row(number) for number in range(1, self.largest + 1)]
        write_rows(files.train, rows)
        write_rows(files.validation, rows * self.repeats)
        if files.demonstrations is not None:
            write_rows(files.demonstrations, self._demonstrations())
        return files

    def _row(self, number: int) -> dict[str, Any]:
        """A game; its answer, which nothing learns from, is the best play."""
        middle = [(low + high) // 2 for low, high in halve(number, self.largest)]
        answer = "".join(_turn(guess, number) for guess in middle)
        return {"question": f"1 to {self.largest}", "answer": answer, "number": number, "turns": self.turns}

    def _demonstrations(self) -> Iterator[dict[str, Any]]:
        for start in range(0, self.demonstrations, _BLOCK):
            rows = range(start, min(start + _BLOCK, self.demonstrations))
            for first, *draws in sample_uniforms(rows, 1 + self.turns, self.seed, "guess"):
                number = 1 + int(first * self.largest)
                yield {**self._row(number), "answer": _play(number, self.largest, draws)}


class Game:
    """The game as an environment (`environment.Environment`). A guess that is no number ends it."""

    def reset(self, row: dict[str, Any], seed: int) -> None:
        """Takes the number of the row."""
        self._number, self._left = int(row["number"]), int(row["turns"])

    def step(self, response: str) -> tuple[str, float, bool]:
        """See `Environment`."""
        text = response.removesuffix("?")
        guess = int(text) if text.isdecimal() else None
        self._left -= 1
        if guess is None or guess == self._number or not self._left:
            return "", float(guess == self._number), True
        return _reply(guess, self._number), 0.0, False


def best_chance(largest: int, turns: int) -> float:
    """The greatest probability of finding the number: a tree of guesses as deep as `turns` holds 2^turns − 1."""
    return min(1.0, (2**turns - 1) / largest)


def halve(number: int, largest: int) -> Iterator[tuple[int, int]]:
    """Yields the smallest and largest possible number before each guess of the middle, until it is found."""
    low, high = 1, largest
    while True:
        yield low, high
        middle = (low + high) // 2
        if middle == number:
            return
        low, high = (middle + 1, high) if middle < number else (low, middle - 1)


def _play(number: int, largest: int, draws: list[float]) -> str:
    """A game whose guesses are uniform among the numbers that are still possible."""
    low, high, guesses = 1, largest, []
    for draw in draws:
        guess = low + int(draw * (high - low + 1))
        guesses.append(guess)
        if guess == number:
            break
        low, high = (guess + 1, high) if guess < number else (low, guess - 1)
    *before, last = guesses
    return "".join(_turn(guess, number) for guess in before) + f"{last}?"


def _turn(guess: int, number: int) -> str:
    return f"{guess}?" if guess == number else f"{guess}?{_reply(guess, number)}"


def _reply(guess: int, number: int) -> str:
    return " higher\n" if guess < number else " lower\n"
