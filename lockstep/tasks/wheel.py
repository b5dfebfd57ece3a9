"""A wheel of fortune and a few questions, paid out once: what the wheel gives is luck, a right answer is worth a coin.

    wheel and 4 questions          the prompt
     spin                          the policy spins
    20 ka                          the coins that the wheel gives (0, 10 or 20), and the first question
     yes                           the policy says yes or no
    mo no                          the next question, and an answer

Only the payout tells which answers are right, and most of that is luck. GRPO compares episodes whose luck differs. A
critic reads the coins before the first answer, so no answer gets credit for luck: here a critic earns its cost.
The reward is the share of right answers, and what the wheel gave above its mean by the same measure; the best policy
earns 1 on average. Validation wheels give their mean, so what is measured there is skill.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Annotated, Any

from pydantic import Field, NonNegativeInt, PositiveInt

from lockstep.config import Probability
from lockstep.tasks.base import Task, TaskFiles, list_syllables, sample_uniforms, write_rows

ANSWERS = " yes", " no"
SPIN = " spin"
_BLOCK = 1024


class Wheel(Task):
    """The task of the wheel. There is one game, so nothing is held out: validation plays it without luck."""

    shared = ("names", "questions", "luck", "seed")
    names: Annotated[int, Field(ge=2, le=len(list_syllables()))] = Field(
        default=32, description="different questions, each with an answer of its own"
    )
    questions: PositiveInt = Field(default=4, description="questions of an episode, drawn from all")
    luck: NonNegativeInt = Field(default=10, description="coins that the wheel gives on average: none, these or twice")
    repeats: PositiveInt = Field(default=64, description="validation episodes")
    demonstrations: NonNegativeInt = Field(default=0, description="episodes for SFT; 0: none")
    known: Probability = Field(default=0.6, description="share of right answers in the demonstrations")
    seed: int = Field(default=0, description="of the answers; the run's seed does not change them")

    @property
    def idle_options(self) -> dict[str, str]:
        return {} if self.demonstrations else {"known": "where demonstrations is 0"}

    def write(self, folder: Path) -> TaskFiles:
        files = TaskFiles.name_in(folder, demonstrations=self.demonstrations > 0)
        row = self._row((0, self.luck, 2 * self.luck))
        write_rows(files.train, [row])
        write_rows(files.validation, [self._row((self.luck,))] * self.repeats)
        if files.demonstrations is not None:
            write_rows(files.demonstrations, self._demonstrations(row))
        return files

    def _row(self, gives: Sequence[int]) -> dict[str, Any]:
        """An episode, and what its wheel may give; its answer, which nothing learns from, is a best play."""
        about = {"names": self.names, "questions": self.questions, "luck": self.luck, "seed": self.seed}
        row = {"question": f"wheel and {self.questions} questions", **about, "gives": list(gives)}
        return {**row, "answer": _play(row, 0, [True] * self.questions)}

    def _demonstrations(self, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for start in range(0, self.demonstrations, _BLOCK):
            rows = range(start, min(start + _BLOCK, self.demonstrations))
            for first, *draws in sample_uniforms(rows, 1 + self.questions, self.seed, "wheel"):
                yield {**row, "answer": _play(row, int(first * 2**32), [draw < self.known for draw in draws])}


class Show:
    """The wheel as an environment (`environment.Environment`). Anything but the right answer's exact text is wrong."""

    cut_off_reward = -2.5  # no coins and no right answer, by the defaults of the task

    def reset(self, row: dict[str, Any], seed: int) -> None:
        """The seed turns the wheel and draws the questions."""
        self._row, self._draws = row, Random(seed)
        self._coins = self._draws.choice(row["gives"])
        self._name, self._right, self._left = "", 0, int(row["questions"])

    @property
    def right_answer(self) -> str:
        """The right answer to the question that is asked."""
        return right_answers(self._row["names"], self._row["seed"])[self._name]

    def step(self, response: str) -> tuple[str, float, bool]:
        """See `Environment`. Whatever the first response is, it turns the wheel."""
        given = "" if self._name else f"{self._coins} "
        if self._name:
            self._right += response == self.right_answer
            self._left -= 1
        if not self._left:
            return "", (self._right + self._coins - self._row["luck"]) / self._row["questions"], True
        self._name = list_syllables()[self._draws.randrange(self._row["names"])]
        return f"\n{given}{self._name}", 0.0, False


@cache
def right_answers(names: int, seed: int) -> dict[str, str]:
    """The right answer to each question, yes to half of them."""
    draws = Random(f"answers of {names} names, {seed}")  # of the standard library: environments start without torch
    yes = set(draws.sample(range(names), names // 2))
    return {name: ANSWERS[number not in yes] for number, name in enumerate(list_syllables()[:names])}


def _play(row: dict[str, Any], seed: int, right: Sequence[bool]) -> str:
    """An episode with right and wrong answers, and what the show says between them."""
    show = Show()
    show.reset(row, seed)
    said = [SPIN, show.step(SPIN)[0]]
    for is_right in right:
        answer = show.right_answer if is_right else ANSWERS[show.right_answer == ANSWERS[0]]
        said += [answer, show.step(answer)[0]]
    return "".join(said)
