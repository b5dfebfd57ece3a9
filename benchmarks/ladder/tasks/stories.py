"""Openings of stories for a model that writes them, and a reward for happy words: real text, and
something to overdo.

One day, Lily went to the park with         to be continued; two happy words are enough
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from lockstep.tasks.base import Task, TaskFiles, write_rows

HAPPY = {"happy", "smiled", "laughed", "loved", "love", "fun", "played", "play"}
HAPPY |= {"friend", "friends", "good", "nice", "hugged", "proud"}
NAMES = ("Lily", "Tom", "Anna", "Ben", "Mia", "Max", "Sara", "Tim")
OPENINGS = (
    "Once upon a time, there was a little child named {}.",
    "One day, {} went to the park with",
    "{} had a big red ball and",
    "It was raining outside, and {} was very sad because",
)
_ENOUGH = 2


class Stories(Task):
    """The task of openings of stories."""

    shared = ("held_out_names",)
    held_out_names: Annotated[int, Field(ge=1, lt=len(NAMES))] = Field(
        default=2, description="names of children in held-out openings alone"
    )

    @property
    def best_reward(self) -> float:
        return 1.0

    def write(self, folder: Path) -> TaskFiles:
        files = TaskFiles.name_in(folder)
        shown = NAMES[: -self.held_out_names]
        write_rows(files.train, ({"question": opening} for opening in openings(shown)))
        write_rows(
            files.validation, ({"question": opening} for opening in openings(NAMES[len(shown) :]))
        )
        return files


def openings(names: Sequence[str]) -> list[str]:
    """All openings about some children."""
    return [opening.format(name) for opening, name in product(OPENINGS, names)]


def words_of(text: str) -> list[str]:
    """The words of a text, without signs and in small letters."""
    return ["".join(filter(str.isalpha, word)).lower() for word in text.split()]


def happiness(prompt: str, response: str, answer: str, row: dict[str, Any]) -> float:
    """Rewards happy words, of which two are enough; a reward function (docs/guides/rewards.md)."""
    return min(1.0, sum(word in HAPPY for word in words_of(response)) / _ENOUGH)
