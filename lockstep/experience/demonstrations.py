"""Demonstrations for supervised fine-tuning: prompt, completion and stop token, with the mask on what is learned."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerBase

from lockstep.batch import Batch
from lockstep.experience.jsonl import JsonlIndex
from lockstep.experience.prompts import fitting_rows, read_prompts, render, rows_at, token_ids, too_long
from lockstep.recipe import DataSection
from lockstep.types import Prompt


@dataclass(frozen=True)
class Demonstration:
    """One row to imitate.

    Attributes:
        prompt: What is given; tokenised by itself, exactly as a sampler will be given it.
        completion: Token ids of what is learned, the stop token last.
    """

    prompt: Prompt
    completion: tuple[int, ...]

    def __len__(self) -> int:
        """Tokens of prompt and completion together."""
        return len(self.prompt.tokens) + len(self.completion)


class Demonstrations:
    """The demonstrations of a data file, read and tokenised when asked for; indexed and ordered as `Prompts` are.

    Args:
        index: The rows.
        tokenizer: The model's; its end-of-sequence token is the stop token.
        data: Templates, limits, and whether to shuffle.
        max_tokens: Longest prompt and completion together; a longer row is over-long, like one with a long prompt.

    Raises:
        DataError: A row lacks a field of a template, or is over-long and not to be skipped.
        ValueError: A template is malformed, or the tokenizer lacks a stop token or a chat template that is needed.
    """

    def __init__(
        self, index: JsonlIndex, tokenizer: PreTrainedTokenizerBase, data: DataSection, max_tokens: int
    ) -> None:
        stop = tokenizer.eos_token_id
        if not isinstance(stop, int):
            raise ValueError(
                "the model's tokenizer has no end-of-sequence token, and completions must end; set eos_token"
            )
        self._stop = stop
        self._index = index
        self._tokenizer = tokenizer
        self._data = data
        self._max_tokens = max_tokens
        self._kept = fitting_rows(index, self._complaints, data.overlong_prompts)

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, i: int) -> Demonstration:
        return self._read([self._kept[i]])[0]

    @property
    def num_overlong(self) -> int:
        """How many rows were skipped because they are too long."""
        return len(self._index) - len(self)

    @property
    def skipped(self) -> int:
        """How many lines of the file are not used: bad ones and over-long ones."""
        return self._index.skipped + self.num_overlong

    def at(self, position: int, count: int, seed: int) -> Batch:
        """The rows at `position` … `position + count − 1` of a run, `mask` on completions; see `prompts.rows_at`."""
        return self._collate(rows_at(position, count, len(self), seed, self._data.shuffle))

    def first(self, limit: int | None = None) -> Batch:
        """The rows in the order of the file, at most the first `limit`."""
        return self._collate(range(len(self))[:limit])

    def _collate(self, indices: Iterable[int]) -> Batch:
        rows = self._read([self._kept[i] for i in indices])
        tokens = [token for row in rows for token in (*row.prompt.tokens, *row.completion)]
        parts = torch.tensor([[len(row.prompt.tokens), len(row.completion)] for row in rows])
        mask = torch.repeat_interleave(torch.tensor([False, True]).repeat(len(rows)), parts.flatten())
        return Batch(torch.tensor(tokens), parts.sum(1), {"mask": mask})

    def _read(self, rows: Sequence[int]) -> list[Demonstration]:
        prompts = read_prompts(self._index, rows, self._tokenizer, self._data)
        texts = [render(self._data.completion, p.row, self._index.where(i)) for i, p in zip(rows, prompts, strict=True)]
        tokens = token_ids(self._tokenizer, texts, add_special_tokens=False)
        return [Demonstration(prompt, (*ids, self._stop)) for prompt, ids in zip(prompts, tokens, strict=True)]

    def _complaints(self, rows: Sequence[int]) -> list[str | None]:
        return [self._complaint(row) for row in self._read(rows)]

    def _complaint(self, row: Demonstration) -> str | None:
        if len(row) <= self._max_tokens:
            return too_long(row.prompt, self._data.max_prompt_tokens)
        return f"prompt and completion have {len(row)} tokens, more than sft.max_tokens={self._max_tokens}"
