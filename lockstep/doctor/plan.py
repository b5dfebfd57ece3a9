"""Plan of the table: its cells, and the number and requests of each cell's sequences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice, product
from typing import Literal

import torch
from torch import Tensor

from lockstep.doctor.options import DoctorGrid, Method
from lockstep.rollouts.rollout import requests_of
from lockstep.types import Prompt, Request, SamplingParams

ROOM = 1
"""Tokens behind a sequence that vLLM wants room for in its context when it scores the sequence."""


@dataclass(frozen=True)
class Cell:
    """One row of the table.

    Attributes:
        length: Tokens of each response.
        beginning: Tokens of a response that are text, and read; the others are decoded and compared.
    """

    length: int
    data: Literal["real", "counting"]
    method: Method
    batch_size: int
    beginning: int = 0

    @property
    def name(self) -> str:
        return f"{self.length} {self.data}, {self.method.name}, batch {self.batch_size}"

    @property
    def decoded(self) -> int:
        """Tokens of each response that are decoded."""
        return self.length - self.beginning

    @property
    def sampling(self) -> SamplingParams:
        return self.method.of_length(self.decoded)

    @property
    def greedy(self) -> bool:
        return self.method.temperature == 0


def cells_of(grid: DoctorGrid) -> list[Cell]:
    """The rows of the table, shortest first."""
    every = product(sorted(grid.lengths), grid.data, grid.methods, grid.batch_sizes)
    return [Cell(*row, beginning=max(0, row[0] - grid.decoded_tokens)) for row in every]


def count_sequences(cell: Cell, grid: DoctorGrid) -> int:
    """Returns the number of a cell's sequences: as many as the grid asks for and its bounds allow, and one batch."""
    rescored = math.ceil(rescore_limit(cell, grid) / cell.batch_size)
    rounds = max(1, min(grid.max_steps // cell.decoded, rescored))
    return min(max(grid.sequences, cell.batch_size), rounds * cell.batch_size)


def rescore_limit(cell: Cell, grid: DoctorGrid) -> int:
    """Returns the largest number of a cell's sequences to rescore."""
    return max(1, grid.max_tokens // cell.length)


def requests_for(cell: Cell, prompts: Sequence[Prompt], count: int, seed: int) -> list[Request]:
    """One request per sequence: every prompt once, then again with other draws; greedy, only once."""
    distinct = list({prompt.tokens: prompt for prompt in prompts}.values())
    rounds = 1 if cell.greedy else math.ceil(count / len(distinct))
    every = requests_of(distinct, 0, rounds, seed, f"doctor {cell.name}")
    return [request for first in range(rounds) for request in every[first::rounds]][:count]


def put_text_before(requests: Sequence[Request], cell: Cell, prompts: Sequence[Prompt], count: int) -> list[Request]:
    """Returns the requests, the first `count` of them with the cell's beginning: all prompts, end to end, in rounds."""
    text = tuple(islice(cycle(token for prompt in prompts for token in prompt.tokens), cell.beginning))
    return [replace(one, tokens=(*text, *one.tokens)) for one in requests[:count]] + list(requests[count:])


def clusters_of(requests: Sequence[Request]) -> Tensor:
    """Returns ids that sequences of one prompt share, int64 [B]."""
    numbers: dict[tuple[int, ...], int] = {}
    return torch.tensor([numbers.setdefault(request.tokens, len(numbers)) for request in requests])
