"""Prompts of the table: text, counting, or random tokens for a model without a tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files

import torch
from transformers import PreTrainedTokenizerBase

from lockstep import keyed
from lockstep.algorithms.rows import files_of, open_prompts
from lockstep.data.prompts import token_ids
from lockstep.doctor.options import DoctorRecipe
from lockstep.errors import InputError
from lockstep.models.folder import read_config
from lockstep.models.tokenizer import has_tokenizer, load_tokenizer
from lockstep.types import Prompt

COUNT = 64
"""Prompts of numbers, or of random tokens."""
_MOST = 256
"""Real prompts that are read, at most."""


@dataclass(frozen=True)
class PromptSource:
    """The prompts of a recipe, for its model."""

    recipe: DoctorRecipe

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        """The model's, where it has one."""
        folder = self.recipe.model.path
        return load_tokenizer(folder) if has_tokenizer(folder) else None

    @property
    def rows(self) -> str | tuple[str, ...]:
        """The files that real prompts are read from."""
        return self.recipe.data.prompts or str(files("lockstep").joinpath("doctor", "prompts.jsonl"))

    def prompts(self, data: str, room: int) -> list[Prompt]:
        """All prompts of a kind, none longer than `room` tokens.

        Raises:
            ValueError: If there are none, or they hold tokens that the model does not know.
        """
        if self.tokenizer is None:
            return self._random(data, room)
        found = self._real(self.tokenizer, room) if data == "real" else self._counting(self.tokenizer, room)
        if not found:
            raise InputError(f"{self.rows} holds no prompt; name a file with rows as data.prompts")
        largest = max(max(prompt.tokens, default=0) for prompt in found)
        if largest >= self._vocabulary:
            raise InputError(
                f"the tokenizer in {self.recipe.model.path} makes token {largest}, but the model has embeddings for "
                f"{self._vocabulary} tokens; bring the tokenizer that belongs to the model"
            )
        return found

    @cached_property
    def _vocabulary(self) -> int:
        return int(read_config(self.recipe.model.path).get_text_config().vocab_size)

    def _real(self, tokenizer: PreTrainedTokenizerBase, room: int) -> list[Prompt]:
        prompts = open_prompts(files_of(self.rows), self.recipe.data.cut(self.rows, room), tokenizer)
        return [prompt for prompt in prompts.first(_MOST) if prompt.tokens]

    def _counting(self, tokenizer: PreTrainedTokenizerBase, room: int) -> list[Prompt]:
        """Numbers in a row, each prompt from another one on, and of other lengths, so that a batch is ragged."""
        texts = [" ".join(str(i + k) for k in range(1, 5 + i % 12)) for i in range(COUNT)]
        tokens = token_ids(tokenizer, texts, add_special_tokens=True)
        longest = min(room, self.recipe.data.max_prompt_tokens)
        return [
            Prompt(f"counting:{i}", text, tuple(own[:longest]), {})
            for i, (text, own) in enumerate(zip(texts, tokens, strict=True))
        ]

    def _random(self, data: str, room: int) -> list[Prompt]:
        longest = min(room, self.recipe.data.max_prompt_tokens)
        keys = torch.tensor([keyed.key(self.recipe.seed, "random prompt", data, i) for i in range(COUNT)])
        drawn = (keyed.uniforms(keys, torch.arange(longest)) * self._vocabulary).long()
        return [Prompt(f"random:{i}", "", tuple(own[: 1 + i % longest].tolist()), {}) for i, own in enumerate(drawn)]
