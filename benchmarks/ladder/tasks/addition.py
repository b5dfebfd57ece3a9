"""Addition of two numbers of several digits, spelled as words, the last digits first.

    add seven five zero and four eight zero make      57 and 84, in columns of at most three digits
     one four one                                     141

A digit is one word, and so one token. Digits come in the order in which a carry goes, so that an
answer can be written from left to right, and all questions are padded to one width, so that the
digits of a column are always equally far apart; a small model learns little else. Demonstrations
have mistakes: each digit is wrong with a fixed probability. A policy that learned from them gets
single digits right about as often, so it solves short sums and fails at long ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import Field, NonNegativeInt, PositiveInt

from benchmarks.ladder.tasks.words import join_words
from lockstep.config import Probability
from lockstep.tasks.base import Task, TaskFiles, permute, sample_uniforms, write_rows

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_BLOCK = 1024
_SHORTEST = 2
"""Digits of the shortest numbers."""


class Addition(Task):
    """The task of sums; the lengths of numbers are equally frequent among its questions."""

    shared = ("train_questions", "validation_questions", "longest", "seed")
    train_questions: PositiveInt = Field(description="distinct training questions")
    validation_questions: PositiveInt = Field(
        description="held-out questions, none of them a training question"
    )
    longest: PositiveInt = Field(default=6, description="digits of the longest numbers")
    demonstrations: NonNegativeInt = Field(
        default=0, description="solved rows for SFT, drawn from the training questions; 0: none"
    )
    demonstrated: PositiveInt = Field(
        default=6, description="digits of the longest numbers that are demonstrated"
    )
    mistakes: Probability = Field(
        default=0.0, description="chance that a digit of a demonstrated answer is wrong"
    )
    seed: int = Field(
        default=0, description="of the questions; the run's seed does not change them"
    )

    @property
    def best_reward(self) -> float:
        return 1.0

    def write(self, folder: Path) -> TaskFiles:
        files = TaskFiles.name_in(folder, demonstrations=self.demonstrations > 0)
        sums = _distinct(self, self.train_questions + self.validation_questions)
        train = sums[self.validation_questions :]
        validation = sums[: self.validation_questions]
        write_rows(files.train, (row(one, self.longest) for one in train))
        write_rows(files.validation, (row(one, self.longest) for one in validation))
        if files.demonstrations is not None:
            write_rows(files.demonstrations, self._demonstrate(train))
        return files

    def _demonstrate(self, train: list[tuple[str, str]]) -> Iterator[dict[str, Any]]:
        """Yields solved training questions in passes, each pass in a new order and with new
        mistakes.
        """
        shown = [one for one in train if len(one[0]) <= self.demonstrated]
        given = 0
        for turn in range(-(-self.demonstrations // len(shown))):
            order = permute(len(shown), self.seed, "demonstrations", turn)[
                : self.demonstrations - given
            ]
            rows = range(given, given + len(order))
            draws = sample_uniforms(rows, 2 * (self.longest + 1), self.seed, "mistakes")
            for which, own in zip(order, draws, strict=True):
                yield row(
                    shown[which], self.longest, _spoil(total(*shown[which]), own, self.mistakes)
                )
            given += len(order)


def total(first: str, second: str) -> str:
    """The sum, without a leading zero; digits of all three from the last to the first."""
    return str(int(first[::-1]) + int(second[::-1]))[::-1]


def row(terms: tuple[str, str], width: int, answer: str | None = None) -> dict[str, Any]:
    """A question with numbers padded to `width` digits by leading zeros; its answer, and the digits
    without them.
    """
    one, other = (_spell(number.ljust(width, "0")) for number in terms)
    return {
        "question": f"add{one} and{other} make",
        "answer": _spell(total(*terms) if answer is None else answer),
        "digits": len(terms[0]),
    }


def score(prompt: str, response: str, answer: str, row: dict[str, Any]) -> float:
    """1 for the right sum, word for word; a reward function (docs/guides/rewards.md)."""
    return float(response.split() == answer.split())


def _distinct(spec: Addition, count: int) -> list[tuple[str, str]]:
    """The first `count` sums of a seed, no two alike; lengths take turns."""
    found: dict[tuple[str, str], None] = {}
    lengths = spec.longest - _SHORTEST + 1
    start = 0
    while len(found) < count:
        rows = range(start, start + _BLOCK)
        for number, draws in zip(
            rows, sample_uniforms(rows, 2 * spec.longest, spec.seed, "addition"), strict=True
        ):
            digits = _SHORTEST + number % lengths
            found.setdefault((_number(draws[:digits]), _number(draws[spec.longest :][:digits])))
        start += _BLOCK
    return list(found)[:count]


def _number(draws: list[float]) -> str:
    """A number from its last digit to its first, which is not zero."""
    *rest, leading = draws
    return "".join(str(int(10 * draw)) for draw in rest) + str(1 + int(9 * leading))


def _spoil(answer: str, draws: list[float], mistakes: float) -> str:
    """Replaces each digit by a random other one with probability `mistakes`."""
    pairs = zip(answer, draws[::2], draws[1::2], strict=False)
    return "".join(
        str((int(digit) + 1 + int(9 * other)) % 10) if chance < mistakes else digit
        for digit, chance, other in pairs
    )


def _spell(digits: str) -> str:
    """The digits as words, each with a space in front."""
    return join_words(DIGITS[int(digit)] for digit in digits)
