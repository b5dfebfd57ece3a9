"""A quiz for coins, paid out once at its end: a right answer wins a coin, a wrong one costs a coin.

    quiz with 24 questions : ka     the prompt, with the first question
     yes                            the policy says yes or no
    25 mo no                        the coins that it has now, the next question, and an answer
    24 ka

Nothing tells the policy which answers are right but the coins. Where all coins pay for every answer, the other answers
are noise. A critic that reads the coins knows what each answer has earned, so this is where credit can be told apart
from luck. The best policy knows all answers; the reward is the share of its coins, 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from lockstep.tasks.base import Task, TaskFiles, sample_uniforms, write_rows

ANSWERS = " yes", " no"
_LETTERS = "bcdfghjklmnprstv", "aeiou", "bdfgklmnprst"
_BLOCK = 1024


class Quiz(Task):
    """The task of quizzes. What is held out is how they begin: any quiz may ask for any name later."""

    shared = ("names", "held_out", "questions", "seed")
    names: PositiveInt = Field(default=32, description="different questions, each with an answer of its own")
    questions: PositiveInt = Field(default=24, description="questions of a quiz, drawn from all")
    held_out: PositiveInt = Field(default=8, description="names with which only validation quizzes begin")
    repeats: PositiveInt = Field(default=4, description="validation quizzes that begin with each of them")
    demonstrations: NonNegativeInt = Field(default=0, description="quizzes for SFT, answered at random; 0: none")
    seed: int = Field(default=0, description="of the answers; the run's seed does not change them")

    @model_validator(mode="after")
    def _there_are_so_many(self) -> Quiz:
        if self.names > len(list_names()):
            raise ValueError(f"there are {len(list_names())} names to ask for, but names is {self.names}")
        if self.held_out >= self.names:
            raise ValueError(f"held_out is {self.held_out} of {self.names} names; leave one to train on")
        return self

    def write(self, folder: Path) -> TaskFiles:
        files = TaskFiles.name_in(folder, demonstrations=self.demonstrations > 0)
        rows = [self._row(name) for name in list_names()[: self.names]]
        write_rows(files.train, rows[self.held_out :])
        write_rows(files.validation, rows[: self.held_out] * self.repeats)
        if files.demonstrations is not None:
            write_rows(files.demonstrations, self._demonstrations())
        return files

    def _row(self, name: str) -> dict[str, Any]:
        """A quiz; its answer, which nothing learns from, is a best play."""
        about = {"first": name, "names": self.names, "questions": self.questions, "seed": self.seed}
        row = {"question": f"quiz with {self.questions} questions : {name}", **about}
        return {**row, "answer": _play(row, 0, [1.0] * self.questions)}

    def _demonstrations(self) -> Iterator[dict[str, Any]]:
        for start in range(0, self.demonstrations, _BLOCK):
            rows = range(start, min(start + _BLOCK, self.demonstrations))
            for first, *draws in sample_uniforms(rows, 1 + self.questions, self.seed, "quiz"):
                row = self._row(list_names()[self.held_out + int(first * (self.names - self.held_out))])
                yield {**row, "answer": _play(row, int(first * 2**32), draws)}


class Show:
    """The quiz as an environment (`environment.Environment`). What is neither yes nor no is a wrong answer."""

    def reset(self, row: dict[str, Any], seed: int) -> None:
        """Begins with the row's question; the seed draws the others."""
        self._row, self._draws = row, Random(seed)
        self._name, self._asked, self._coins = row["first"], 0, row["questions"]

    @property
    def right_answer(self) -> str:
        """The right answer to the question that is asked."""
        return right_answers(self._row["names"], self._row["seed"])[self._name]

    def step(self, response: str) -> tuple[str, float, bool]:
        """See `Environment`."""
        self._coins += 1 if response == self.right_answer else -1
        self._asked += 1
        if self._asked == self._row["questions"]:
            return "", self._coins / (2 * self._row["questions"]), True
        self._name = list_names()[self._draws.randrange(self._row["names"])]
        return f"\n{self._coins} {self._name}", 0.0, False


@cache
def list_names() -> list[str]:
    """All that can be asked for: one-syllable words."""
    first, second, last = _LETTERS
    return [a + b + c for c in ("", *last) for a in first for b in second]


@cache
def right_answers(names: int, seed: int) -> dict[str, str]:
    """The right answer to each question, yes to half of them."""
    draws = Random(f"answers of {names} names, {seed}")  # of the standard library: environments start without torch
    yes = set(draws.sample(range(names), names // 2))
    return {name: ANSWERS[number not in yes] for number, name in enumerate(list_names()[:names])}


def _play(row: dict[str, Any], seed: int, draws: Sequence[float]) -> str:
    """A quiz whose answers are right where a draw is above one half, with coins and questions between."""
    show, said = Show(), list[str]()
    show.reset(row, seed)
    for draw in draws:
        answer = ANSWERS[(draw > 0.5) == (show.right_answer == ANSWERS[1])]
        said += [answer, show.step(answer)[0]]
    return "".join(said)
