"""A quiz: the host shows a prize, asks four times if a number is prime, and pays at the end.

    quiz of 4 questions            the prompt
     ready                         the policy is ready
    20                             the prize (0, 10 or 20 coins), which is luck
    17 yes                         a question, and the policy's answer; a right one is worth a coin
    51 no                          the next one

Only the payout tells which answers are right, and most of it is the prize. GRPO compares episodes
whose prizes differ. A critic reads the prize before the first answer, so no answer gets credit for
luck, and a critic pays off. The reward is the share of all possible coins, so no episode
earns more than 1, and a truncated episode earns nothing. Held-out quizzes show the same prizes, and
only their answers count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Annotated, Any

from pydantic import Field, NonNegativeInt

from lockstep.tasks.base import Task, TaskFiles, sample_uniforms, write_rows

ANSWERS = " yes", " no"
READY = " ready"
LARGEST = 63  # largest number asked; all are odd, and 17 of 32 are prime
_BLOCK = 1024
_REPEATS = 22  # validation episodes with each of the three prizes
_KNOWN = 0.6  # share of right answers in the demonstrations


class Quiz(Task):
    """The task of the quiz.

    Train and validation use the same numbers, in orders that the episode's seed draws.
    """

    shared = ("questions", "luck", "seed")
    questions: Annotated[int, Field(ge=1, le=32)] = Field(
        default=4, description="number of questions per episode"
    )
    luck: NonNegativeInt = Field(
        default=10, description="mean prize in coins; each prize is 0, this or twice this"
    )
    demonstrations: NonNegativeInt = Field(default=0, description="number of SFT episodes; 0: none")
    seed: int = Field(
        default=0, description="seed of the demonstrations, independent of the run's seed"
    )

    @property
    def best_reward(self) -> float:
        """The share of coins with all answers right and an average prize; no episode exceeds 1."""
        return (self.luck + self.questions) / (2 * self.luck + self.questions)

    def write(self, folder: Path) -> TaskFiles:
        files = TaskFiles.name_in(folder, demonstrations=self.demonstrations > 0)
        prizes = [0, self.luck, 2 * self.luck]
        train = self._build_row(prizes, most=prizes[-1])
        write_rows(files.train, [train])
        write_rows(
            files.validation, [self._build_row([prize], most=0) for prize in prizes] * _REPEATS
        )
        if files.demonstrations is not None:
            write_rows(files.demonstrations, self._build_demonstrations(train))
        return files

    def _build_row(self, prizes: Sequence[int], most: int) -> dict[str, Any]:
        """The row of an episode: possible prizes, largest prize that counts, a perfect answer."""
        row = {"question": f"quiz of {self.questions} questions", "questions": self.questions}
        row |= {"prizes": list(prizes), "most": most}
        return {**row, "answer": _play_transcript(row, 0, [True] * self.questions)}

    def _build_demonstrations(self, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for start in range(0, self.demonstrations, _BLOCK):
            rows = range(start, min(start + _BLOCK, self.demonstrations))
            for first, *draws in sample_uniforms(rows, 1 + self.questions, self.seed, "quiz"):
                yield {
                    **row,
                    "answer": _play_transcript(
                        row, int(first * 2**32), [draw < _KNOWN for draw in draws]
                    ),
                }


class Show:
    """The host, as an environment (`environment.Environment`).

    Only the exact text of the right answer counts as right.
    """

    cut_off_reward = 0.0  # no coins, the least that a complete quiz can earn

    def reset(self, row: dict[str, Any], seed: int) -> None:
        """The seed draws the prize and the numbers."""
        draws = Random(seed)
        self._prize = draws.choice(row["prizes"])
        self._most = int(row["most"])
        self._numbers = draws.sample(range(1, LARGEST + 1, 2), row["questions"])
        self._asked = 0
        self._right = 0

    @property
    def right_answer(self) -> str:
        """The right answer to the current question."""
        return ANSWERS[not is_prime(self._numbers[self._asked - 1])]

    def step(self, response: str) -> tuple[str, float, bool]:
        """See `Environment`. Any first response starts the quiz."""
        if not self._asked:
            self._asked = 1
            return f"\n{self._prize}\n{self._numbers[0]}", 0.0, False
        self._right += response == self.right_answer
        if self._asked == len(self._numbers):
            paid = min(self._prize, self._most) + self._right
            return "", paid / (self._most + len(self._numbers)), True
        self._asked += 1
        return f"\n{self._numbers[self._asked - 1]}", 0.0, False


def is_prime(number: int) -> bool:
    """True if the number is prime, by trial division."""
    return number > 1 and all(number % divisor for divisor in range(2, number))


def _play_transcript(row: dict[str, Any], seed: int, right: Sequence[bool]) -> str:
    """A transcript with right and wrong answers, and the host's replies between them."""
    host = Show()
    host.reset(row, seed)
    transcript = [READY, host.step(READY)[0]]
    for is_right in right:
        if is_right:
            answer = host.right_answer
        else:
            answer = ANSWERS[host.right_answer == ANSWERS[0]]
        transcript += [answer, host.step(answer)[0]]
    return "".join(transcript)
