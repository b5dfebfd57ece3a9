"""Generated walks through a marsh, paid at the end: each move leads to a dry place or to a wet one.

    walk from ka over mo                            from each place one way leads to a dry place, one to a wet one
     be wet so dry ti dry                           after each move the walker notes the ground: 2 of 3 moves were right

A model that has learned from random walks knows the ways and notes the ground correctly, but does
not choose dry places. The reward of a whole walk says little about one move, while a critic that
reads the notes knows what each move has earned: here token-level credit beats credit by response.
The best policy stays dry and has reward 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from pydantic import Field, NonNegativeInt, PositiveInt

from benchmarks.ladder.tasks.words import join_words
from lockstep.tasks.base import Task, TaskFiles, permute, sample_uniforms, write_rows

_LONGER = 4  # moves of a demonstration beyond those that count
DRY = "dry"
WET = "wet"
_HELD_OUT = 64
"""Walks whose beginning is held out."""


@cache
def list_syllables() -> tuple[str, ...]:
    """1,040 words of one syllable, always in the same order: names of places."""
    first = "bcdfghjklmnprstv"
    second = "aeiou"
    last = "bdfgklmnprst"
    return tuple(a + b + c for c in ("", *last) for a in first for b in second)


class Walk(Task):
    """The task of walks on a graph."""

    shared = ("places", "moves", "seed")
    places: PositiveInt = Field(default=512, description="places of the graph")
    moves: PositiveInt = Field(default=24, description="moves of a walk that count")
    demonstrations: NonNegativeInt = Field(
        default=0, description="random walks with right notes, for SFT; 0: none"
    )
    seed: int = Field(
        default=0, description="of the graph and the rows; the run's seed does not change them"
    )

    @property
    def best_reward(self) -> float:
        return 1.0

    def write(self, folder: Path) -> TaskFiles:
        files = TaskFiles.name_in(folder, demonstrations=self.demonstrations > 0)
        beginnings = permute(2 * self.places, self.seed, "beginnings")
        held_out = beginnings[:_HELD_OUT]
        train = beginnings[_HELD_OUT:]
        about = {"places": self.places, "moves": self.moves, "seed": self.seed}
        for path, own in ((files.train, train), (files.validation, held_out)):
            write_rows(path, ({**row, **about} for row in self._walks(own, path.stem)))
        if files.demonstrations is not None:
            order = permute(self.demonstrations, self.seed, "order")
            write_rows(
                files.demonstrations,
                self._walks([train[one % len(train)] for one in order], "demonstrations"),
            )
        return files

    def _walks(self, beginnings: Sequence[int], role: str) -> Iterator[dict[str, Any]]:
        """Random walks with right notes, a few moves longer than what counts, so that a model does
        not stop early.
        """
        names = list_syllables()
        ways = draw_ways(self.places, self.seed)
        draws = sample_uniforms(
            range(len(beginnings)), self.moves + _LONGER, self.seed, "walks", role
        )
        for beginning, chances in zip(beginnings, draws, strict=True):
            start, first = divmod(beginning, 2)
            place = ways[start][first]
            words = list[str]()
            question = f"walk from {names[start]} over {names[place]}"
            for chance in chances:
                choice = int(2 * chance)
                place = ways[place][choice]
                words += [names[place], (DRY, WET)[choice]]
            yield {"question": question, "answer": join_words(words)}


@cache
def number_places() -> dict[str, int]:
    """Numbers of places by their names."""
    return {name: number for number, name in enumerate(list_syllables())}


@cache
def find_dry(places: int, seed: int) -> frozenset[int]:
    """The dry places, half of all."""
    # of the standard library: rewards start soon without torch
    draws = Random(f"ground of {places} places, {seed}")
    return frozenset(draws.sample(range(places), places // 2))


@cache
def draw_ways(places: int, seed: int) -> list[tuple[int, int]]:
    """Each place's two neighbors: a dry place first, then a wet one."""
    draws = Random(f"ways of {places} places, {seed}")
    is_dry = find_dry(places, seed)
    dry = sorted(is_dry)
    wet = sorted(set(range(places)) - is_dry)
    return [(draws.choice(dry), draws.choice(wet)) for _ in range(places)]


def reward(prompt: str, response: str, answer: str, row: dict[str, Any]) -> float:
    """The dry moves as a share of `moves`; a reward function (docs/guides/rewards.md).

    Only the ground counts: notes earn nothing, and a jump to a dry place that is no neighbor counts
    as well.
    """
    numbers = number_places()
    dry = find_dry(row["places"], row["seed"])
    reached = [numbers[word] for word in response.split() if word in numbers]
    return sum(place in dry for place in reached[: row["moves"]]) / row["moves"]
