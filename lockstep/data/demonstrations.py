"""Demonstrations for supervised fine-tuning: prompt, completion and stop token, with the mask on what is learned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerBase

from lockstep.batch import Batch
from lockstep.data.prompts import fault_of, prompts_of, token_ids, too_long
from lockstep.data.rows import Row, Rows
from lockstep.data.selection import Needs, Selection
from lockstep.data.templates import render
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
        rows: The data.
        tokenizer: The model's; its end-of-sequence token is the stop token.
        data: Templates, limits, and whether to shuffle.
        max_tokens: Longest prompt and completion together; a longer row is over-long, like one with a long prompt.

    Raises:
        DataError: A row lacks a field of a template, or is over-long, and is not to be skipped.
        ValueError: A template is malformed, or the tokenizer lacks a stop token or a chat template that is needed.
    """

    def __init__(self, rows: Rows, tokenizer: PreTrainedTokenizerBase, data: DataSection, max_tokens: int) -> None:
        stop = tokenizer.eos_token_id
        if not isinstance(stop, int):
            raise ValueError(
                "the model's tokenizer has no end-of-sequence token, and completions must end; set eos_token"
            )
        self._stop = stop
        self._tokenizer = tokenizer
        self._data = data
        self._max_tokens = max_tokens
        key = ("demonstrations", max_tokens)
        templates = (*data.prompt_templates, data.completion)
        needs = Needs(templates, fault_of(tokenizer, data), lambda *read: self._lengths(rows, *read), key)
        self.selection = Selection(rows, tokenizer, data, needs)

    def __len__(self) -> int:
        return len(self.selection)

    def __getitem__(self, i: int) -> Demonstration:
        return self._read(self.selection.numbers([i]))[0]

    @property
    def digest(self) -> str:
        """Fingerprint of the data; see `Rows.digest`."""
        return self.selection.rows.digest

    def at(self, position: int, count: int, seed: int) -> Batch:
        """The rows at `position` … `position + count − 1` of a run, `mask` on completions; see `data.order`."""
        return self._collate(self.selection.at(position, count, seed))

    def first(self, limit: int | None = None) -> Batch:
        """The rows in the order of the file, at most the first `limit`."""
        return self._collate(self.selection.first(limit))

    def _collate(self, numbers: Sequence[int]) -> Batch:
        rows = self._read(numbers)
        tokens = [token for row in rows for token in (*row.prompt.tokens, *row.completion)]
        parts = torch.tensor([[len(row.prompt.tokens), len(row.completion)] for row in rows])
        mask = torch.repeat_interleave(torch.tensor([False, True]).repeat(len(rows)), parts.flatten())
        return Batch(torch.tensor(tokens), parts.sum(1), {"mask": mask})

    def _read(self, numbers: Sequence[int]) -> list[Demonstration]:
        rows = self.selection.rows
        return self._of(rows, numbers, rows.rows(numbers))

    def _of(self, rows: Rows, numbers: Sequence[int], contents: Sequence[Row]) -> list[Demonstration]:
        prompts = prompts_of(rows, numbers, contents, self._tokenizer, self._data)
        texts = [render(self._data.completion, p.row, rows.where(i)) for i, p in zip(numbers, prompts, strict=True)]
        tokens = token_ids(self._tokenizer, texts, add_special_tokens=False)
        return [Demonstration(prompt, (*ids, self._stop)) for prompt, ids in zip(prompts, tokens, strict=True)]

    def _lengths(self, rows: Rows, numbers: Sequence[int], contents: Sequence[Row]) -> list[str | None]:
        return [self._complaint(row) for row in self._of(rows, numbers, contents)]

    def _complaint(self, row: Demonstration) -> str | None:
        if len(row) <= self._max_tokens:
            return too_long(row.prompt, self._data.max_prompt_tokens)
        return f"prompt and completion have {len(row)} tokens, more than sft.max_tokens={self._max_tokens}"
