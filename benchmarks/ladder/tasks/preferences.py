"""Preferences between short answers of known worth, so that the optimal policy is known, too.

    like 3                         asks for a few letters
     b a c                         each letter is worth something, by its place and by what was asked

Of two answers, drawn from all that there are, the one with the higher score is preferred. Scores
are what answers are worth, so that the better one always wins, or that with Gumbel noise, so that
it wins with probability σ(u − u′), as Bradley and Terry have it. All answers are so few that a
policy's probabilities of them can be written down one by one. Every demonstration is as likely as
any other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from statistics import NormalDist
from typing import Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from benchmarks.ladder.tasks.words import join_words
from lockstep.tasks.base import Task, TaskFiles, sample_uniforms, write_rows

_LETTERS = "abcdefgh"
_NORMAL = NormalDist()
_HELD_OUT = 1024
"""Held-out pairs, labeled as Bradley and Terry have it."""


class Preferences(Task):
    """The task of preferences with a known worth."""

    shared = ("prompts", "letters", "length", "spread", "seed")
    prompts: PositiveInt = Field(default=8, description="different prompts")
    letters: int = Field(default=4, ge=2, le=len(_LETTERS), description="letters to write with")
    length: PositiveInt = Field(default=3, description="letters of an answer")
    spread: PositiveFloat = Field(
        default=1.5, description="standard deviation of the worth of a prompt's answers"
    )
    pairs: PositiveInt = Field(default=4096, description="pairs to train on")
    labels: Literal["drawn", "certain"] = Field(
        default="drawn",
        description=(
            "the better answer is preferred with probability σ(u − u′), or always, and "
            "scores are exact"
        ),
    )
    demonstrations: NonNegativeInt = Field(
        default=0, description="answers for SFT, any as likely as another; 0: none"
    )
    seed: int = Field(
        default=0, description="of worth and pairs; the run's seed does not change them"
    )

    def write(self, folder: Path) -> TaskFiles:
        files = TaskFiles.name_in(folder, demonstrations=self.demonstrations > 0)
        worth = Worth(self.prompts, self.letters, self.length, self.spread, self.seed)
        write_rows(files.train, self._pairs(worth, self.pairs, "pairs", self.labels))
        write_rows(files.validation, self._pairs(worth, _HELD_OUT, "held out", "drawn"))
        if files.demonstrations is not None:
            draws = sample_uniforms(
                range(self.demonstrations), 2, self.seed, "preferences", "demonstrations"
            )
            rows = (
                (_pick(worth.questions, one), _pick(worth.answers, other)) for one, other in draws
            )
            write_rows(
                files.demonstrations,
                ({"question": question, "answer": answer} for question, answer in rows),
            )
        return files

    def _pairs(self, worth: Worth, count: int, role: str, labels: str) -> Iterator[dict[str, Any]]:
        """Pairs of different answers, with what they are worth."""
        for asked, one, step, _, mine, other in sample_uniforms(
            range(count), 6, self.seed, "preferences", role
        ):
            question = _pick(worth.questions, asked)
            size = len(worth.answers)
            first = int(one * size)
            second = (first + 1 + int(step * (size - 1))) % size
            drawn = ((worth.answers[first], mine), (worth.answers[second], other))
            noise = {
                draw: -math.log(-math.log(draw)) if labels == "drawn" else 0.0 for _, draw in drawn
            }
            pair = [(worth.of[question][answer] + noise[draw], answer) for answer, draw in drawn]
            chosen, rejected = sorted(pair, reverse=True)
            yield {
                "question": question,
                "answer": chosen[1],
                "chosen": chosen[1],
                "chosen_score": chosen[0],
                "rejected": rejected[1],
                "rejected_score": rejected[0],
            }


@dataclass(frozen=True)
class Worth:
    """The worth of all answers to all prompts: a normal number for each letter in its place, and
    their sum scaled.

    Attributes:
        prompts: Number of prompts.
        letters: Number of letters.
        length: Letters of an answer.
        spread: Standard deviation of the worth of a prompt's answers.
        seed: Of the worth.
    """

    prompts: int
    letters: int
    length: int
    spread: float
    seed: int

    @property
    def questions(self) -> list[str]:
        """All prompts."""
        return [f"like {number}" for number in range(self.prompts)]

    @cached_property
    def answers(self) -> list[str]:
        """All answers."""
        return [join_words(word) for word in product(_LETTERS[: self.letters], repeat=self.length)]

    @cached_property
    def of(self) -> dict[str, dict[str, float]]:
        """Worth of each answer to each prompt; a prompt's mean is 0."""
        draws = sample_uniforms(
            range(self.prompts), self.letters * self.length, self.seed, "preferences", "worth"
        )
        return {
            question: self._scale(own) for question, own in zip(self.questions, draws, strict=True)
        }

    def _scale(self, draws: list[float]) -> dict[str, float]:
        parts = [_NORMAL.inv_cdf(draw) for draw in draws]
        sums = [
            sum(
                parts[place * self.letters + _LETTERS.index(letter)]
                for place, letter in enumerate(answer.split())
            )
            for answer in self.answers
        ]
        mean = sum(sums) / len(sums)
        deviation = math.sqrt(sum((one - mean) ** 2 for one in sums) / len(sums))
        scaled = ((one - mean) * self.spread / deviation for one in sums)
        return dict(zip(self.answers, scaled, strict=True))


def distance(
    probability: dict[str, float], reference: dict[str, float], worth: dict[str, float], beta: float
) -> float:
    """KL(π ‖ π*) of a prompt's answers, nats, where π* ∝ π_ref·exp(u/β) is the best that a reward u
    allows.

    All other texts together count as one more answer, worth as little as the worst one.
    """
    floor = min(worth.values())
    value = {**worth, "": floor}
    mine = {**probability, "": max(1 - sum(probability.values()), 1e-12)}
    before = {**reference, "": max(1 - sum(reference.values()), 1e-12)}
    aims = {answer: math.log(before[answer]) + value[answer] / beta for answer in value}
    top = max(aims.values())
    total = top + math.log(sum(math.exp(aim - top) for aim in aims.values()))
    return sum(
        share * (math.log(share) - (aims[answer] - total))
        for answer, share in mine.items()
        if share
    )


def _pick(options: list[str], draw: float) -> str:
    return options[int(draw * len(options))]
