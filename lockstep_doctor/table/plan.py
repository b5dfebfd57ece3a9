"""Plan of the table: its cells, and the requests and prompts of each cell."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.resources import files
from itertools import chain, cycle, islice, product
from typing import Literal

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from lockstep.algorithms.rows import group_files, open_prompts
from lockstep.core import keyed
from lockstep.core.errors import InputError
from lockstep.core.types import Prompt, Request, SamplingParams
from lockstep.data.prompts import token_ids
from lockstep.models.folder import read_config
from lockstep.models.tokenizer import has_tokenizer, load_tokenizer
from lockstep.rollouts.rollout import build_requests
from lockstep_doctor.table.options import DoctorGrid, DoctorRecipe, SamplingMethod

ROOM = 1
"""Extra tokens of context that vLLM needs to score a sequence."""
COUNT = 64
"""Number of counting or random prompts."""
_MOST = 256
"""Largest number of real prompts to read."""


@dataclass(frozen=True)
class TableCell:
    """One row of the table.

    Attributes:
        length: Tokens of each response.
        beginning: Tokens at the beginning of a response that are prompt text and prefilled; the
            rest are decoded and compared.
    """

    length: int
    data: Literal["real", "counting"]
    method: SamplingMethod
    batch_size: int
    beginning: int = 0

    @property
    def name(self) -> str:
        return f"{self.length} {self.data}, {self.method.name}, batch {self.batch_size}"

    @property
    def decoded_tokens(self) -> int:
        """Tokens of each response that are decoded."""
        return self.length - self.beginning

    @property
    def sampling(self) -> SamplingParams:
        return self.method.of_length(self.decoded_tokens)

    @property
    def is_greedy(self) -> bool:
        return self.method.temperature == 0


def cells_of(grid: DoctorGrid) -> list[TableCell]:
    """The rows of the table, shortest first."""
    every = product(sorted(grid.lengths), grid.data, grid.methods, grid.batch_sizes)
    return [TableCell(*row, beginning=max(0, row[0] - grid.decoded_tokens)) for row in every]


def count_sequences(cell: TableCell, grid: DoctorGrid) -> int:
    """Returns the number of a cell's sequences: the grid's number within its limits, and at least
    one batch.
    """
    rescored = math.ceil(rescore_limit(cell, grid) / cell.batch_size)
    rounds = max(1, min(grid.max_steps // cell.decoded_tokens, rescored))
    return min(max(grid.sequences, cell.batch_size), rounds * cell.batch_size)


def rescore_limit(cell: TableCell, grid: DoctorGrid) -> int:
    """Returns the largest number of a cell's sequences to rescore."""
    return max(1, grid.max_tokens // cell.length)


def requests_for(
    cell: TableCell, prompts: Sequence[Prompt], count: int, seed: int
) -> list[Request]:
    """One request per sequence: every prompt once, then again with new random keys; once only if
    greedy.
    """
    distinct = list({prompt.tokens: prompt for prompt in prompts}.values())
    if cell.is_greedy:
        rounds = 1
    else:
        rounds = math.ceil(count / len(distinct))
    every = build_requests(distinct, 0, rounds, seed, f"doctor {cell.name}")
    ordered = list[Request]()
    for first in range(rounds):
        ordered += every[first::rounds]
    return ordered[:count]


def put_text_before(
    requests: Sequence[Request], cell: TableCell, prompts: Sequence[Prompt], count: int
) -> list[Request]:
    """Returns the requests; the first `count` begin with the cell's text, which is all prompts
    concatenated and repeated.
    """
    tokens = chain.from_iterable(prompt.tokens for prompt in prompts)
    text = tuple(islice(cycle(tokens), cell.beginning))
    longer = [replace(one, tokens=(*text, *one.tokens)) for one in requests[:count]]
    return [*longer, *requests[count:]]


def clusters_of(requests: Sequence[Request]) -> Tensor:
    """Returns ids that sequences of one prompt share, int64 [B]."""
    numbers: dict[tuple[int, ...], int] = {}
    return torch.tensor([numbers.setdefault(request.tokens, len(numbers)) for request in requests])


@dataclass(frozen=True)
class PromptSource:
    """The prompts of a recipe for its model."""

    recipe: DoctorRecipe

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        """The model's tokenizer; None if it has none."""
        folder = self.recipe.model.path
        if has_tokenizer(folder):
            return load_tokenizer(folder)
        return None

    @property
    def prompt_files(self) -> str | tuple[str, ...]:
        """The files of real prompts."""
        return self.recipe.data.prompts or str(
            files("lockstep_doctor").joinpath("table", "prompts.jsonl")
        )

    def read_prompts(self, data: str, room: int) -> list[Prompt]:
        """All prompts of a kind, none longer than `room` tokens.

        Raises:
            ValueError: There are none, or a token is not in the model's vocabulary.
        """
        longest = min(room, self.recipe.data.max_prompt_tokens)
        if self.tokenizer is None:
            return self._draw_random_prompts(data, longest)
        if data == "real":
            found = self._read_real_prompts(self.tokenizer, longest)
        else:
            texts = [" ".join(map(str, range(i + 1, i + 5 + i % 12))) for i in range(COUNT)]
            tokens = token_ids(self.tokenizer, texts, add_special_tokens=True)
            found = list[Prompt]()
            for i, (text, own) in enumerate(zip(texts, tokens, strict=True)):
                found.append(Prompt(f"counting:{i}", text, tuple(own[:longest]), {}))
        if not found:
            raise InputError(
                f"{self.prompt_files} holds no prompt; set data.prompts to a file with rows"
            )
        largest = max(max(prompt.tokens, default=0) for prompt in found)
        if largest >= self._vocabulary_size:
            raise InputError(
                f"the tokenizer in {self.recipe.model.path} returns token {largest}, but the "
                f"model has embeddings for {self._vocabulary_size} tokens; use the model's own "
                "tokenizer"
            )
        return found

    @cached_property
    def _vocabulary_size(self) -> int:
        return int(read_config(self.recipe.model.path).get_text_config().vocab_size)

    def _read_real_prompts(self, tokenizer: PreTrainedTokenizerBase, longest: int) -> list[Prompt]:
        """Prompts of the data; long ones are cut to their last tokens, after the BOS token if they
        have one.
        """
        prompts = open_prompts(
            group_files(self.prompt_files),
            self.recipe.data.without_length_limit(self.prompt_files),
            tokenizer,
        )
        cut = []
        for prompt in prompts.read_first(_MOST):
            begin = ()
            if prompt.tokens[0] == tokenizer.bos_token_id:
                begin = prompt.tokens[:1]
            rest = prompt.tokens[len(begin) :]
            cut.append(
                replace(prompt, tokens=(*begin, *rest[max(0, len(prompt.tokens) - longest) :]))
            )
        return cut

    def _draw_random_prompts(self, data: str, longest: int) -> list[Prompt]:
        keys = torch.tensor(
            [keyed.hash_key(self.recipe.seed, "random prompt", data, i) for i in range(COUNT)]
        )
        drawn = (keyed.draw_uniforms(keys, torch.arange(longest)) * self._vocabulary_size).long()
        prompts = list[Prompt]()
        for i, own in enumerate(drawn):
            prompts.append(Prompt(f"random:{i}", "", tuple(own[: 1 + i % longest].tolist()), {}))
        return prompts
