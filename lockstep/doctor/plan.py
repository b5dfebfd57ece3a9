"""What the table measures: its cells, how many sequences each one needs, and which requests they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from statistics import NormalDist
from typing import Literal

from lockstep.experience.rollout import requests_of
from lockstep.recipe import Grid, Method
from lockstep.types import Prompt, Request, SamplingParams

FEWEST = 8
"""Sequences of a cell, where so few tell enough."""


@dataclass(frozen=True)
class Cell:
    """One row of the table.

    Attributes:
        length: Tokens of each response.
        data: What the prompts are.
        method: How responses are drawn.
        batch_size: Sequences side by side.
    """

    length: int
    data: Literal["real", "counting"]
    method: Method
    batch_size: int

    @property
    def name(self) -> str:
        return f"{self.length} {self.data}, {self.method.name}, batch {self.batch_size}"

    @property
    def sampling(self) -> SamplingParams:
        return SamplingParams(self.length, **self.method.model_dump())

    @property
    def greedy(self) -> bool:
        return self.method.temperature == 0


@dataclass(frozen=True)
class Spread:
    """How a metric scattered in a cell that was measured.

    Attributes:
        mean: Of the metric.
        per_token: Variance of the mean of n tokens of whole sequences, times n: sd² · design effect.
        limit: That the metric has to stay below.
    """

    mean: float
    per_token: float
    limit: float


def cells_of(grid: Grid) -> list[Cell]:
    """The rows of the table, shortest first."""
    return [Cell(*row) for row in product(sorted(grid.lengths), grid.data, grid.methods, grid.batch_sizes)]


def sequences_for(cell: Cell, grid: Grid, spreads: Sequence[Spread], confidence: float) -> int:
    """How many sequences tell the metric from its limit, with the power of one half at least.

    Args:
        cell: That is measured next.
        grid: Its bounds.
        spreads: Of the same cell at a shorter length, each pair's; none where it is the shortest.
        confidence: Of the one-sided bound.
    """
    if not spreads:
        return max(grid.sequences, cell.batch_size)
    z = NormalDist().inv_cdf(confidence)
    tokens = max(_tokens(spread, z) for spread in spreads)
    wanted = math.ceil(min(tokens / cell.length, grid.max_sequences))
    return max(FEWEST, cell.batch_size, wanted)


def _tokens(spread: Spread, z: float) -> float:
    """n = (z · sd · √deff / (limit − expected))²; what is beyond its limit already needs no more to be seen there."""
    room = abs(spread.limit - spread.mean)
    return math.inf if room == 0 else z * z * spread.per_token / (room * room)


def requests_for(cell: Cell, prompts: Sequence[Prompt], count: int, seed: int) -> list[Request]:
    """One request per sequence: every prompt once, then again with other draws; greedy, only once."""
    distinct = list({prompt.tokens: prompt for prompt in prompts}.values())
    rounds = 1 if cell.greedy else math.ceil(count / len(distinct))
    every = requests_of(distinct, 0, rounds, seed, f"doctor {cell.name}")
    return [request for first in range(rounds) for request in every[first::rounds]][:count]
