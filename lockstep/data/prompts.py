"""Prompts from rows: templates filled and tokenised. Nothing is remembered: read twice, a row gives the same prompt."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from lockstep.data.rows import Row, Rows
from lockstep.data.selection import Needs, Selection
from lockstep.data.templates import render
from lockstep.recipe import DataSection
from lockstep.types import Prompt


def read_prompts(
    rows: Rows, numbers: Sequence[int], tokenizer: PreTrainedTokenizerBase, data: DataSection
) -> list[Prompt]:
    """Reads, renders and tokenises the rows `numbers`."""
    return prompts_of(rows, numbers, rows.rows(numbers), tokenizer, data)


def prompts_of(
    rows: Rows, numbers: Sequence[int], contents: Sequence[Row], tokenizer: PreTrainedTokenizerBase, data: DataSection
) -> list[Prompt]:
    """Renders and tokenises rows that were read; the same rows always give the same prompts, whatever their length.

    A plain prompt gets the special tokens that the tokenizer puts around text; a chat template brings its own.
    """
    if not numbers:
        return []
    texts = [render(data.prompt, row, rows.where(i)) for i, row in zip(numbers, contents, strict=True)]
    if data.chat:
        texts = [_chat(text, tokenizer, data.system_prompt) for text in texts]
    tokens = token_ids(tokenizer, texts, add_special_tokens=not data.chat)
    return [
        Prompt(rows.id(i), text, tuple(ids), row)
        for i, text, ids, row in zip(numbers, texts, tokens, contents, strict=True)
    ]


def token_ids(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], *, add_special_tokens: bool) -> list[list[int]]:
    """Tokenises texts in one call, each to its own length."""
    # verbose=False: over-long rows are our own to complain of, with their place in the file.
    encoded = tokenizer(list(texts), add_special_tokens=add_special_tokens, verbose=False, return_attention_mask=False)
    return encoded["input_ids"]


def _chat(text: str, tokenizer: PreTrainedTokenizerBase, system_prompt: str | None) -> str:
    if tokenizer.chat_template is None:
        raise ValueError(
            "data.chat is on, but the model's tokenizer has no chat template; turn data.chat off and write "
            "the whole prompt in data.prompt, or use a model that has one"
        )
    system = [] if system_prompt is None else [{"role": "system", "content": system_prompt}]
    messages = [*system, {"role": "user", "content": text}]
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))


def too_long(prompt: Prompt, max_prompt_tokens: int) -> str | None:
    """What is wrong with a prompt's length, if anything."""
    if len(prompt.tokens) <= max_prompt_tokens:
        return None
    return f"the prompt has {len(prompt.tokens)} tokens, more than data.max_prompt_tokens={max_prompt_tokens}"


class Prompts:
    """The prompts of a data file, read and tokenised when asked for.

    Args:
        rows: The data.
        tokenizer: The model's.
        data: Templates, limits, and whether to shuffle.

    Raises:
        DataError: A row lacks a field of a template, or is over-long, and is not to be skipped.
        ValueError: A template is malformed, or a chat template is wanted and missing.
    """

    def __init__(self, rows: Rows, tokenizer: PreTrainedTokenizerBase, data: DataSection) -> None:
        self._tokenizer = tokenizer
        self._data = data
        # A row without an answer, too, should stop a run before it starts, not at step 40.
        needs = Needs((data.prompt, data.answer), lambda *read: self._lengths(rows, *read), ("prompts",))
        self.selection = Selection(rows, tokenizer, data, needs)

    def __len__(self) -> int:
        return len(self.selection)

    def __getitem__(self, i: int) -> Prompt:
        return self._read(self.selection.numbers([i]))[0]

    @property
    def digest(self) -> str:
        """Fingerprint of the data; see `Rows.digest`."""
        return self.selection.rows.digest

    def at(self, position: int, count: int, seed: int) -> list[Prompt]:
        """The prompts at `position` … `position + count − 1` of a run; see `lockstep.data.order`."""
        return self._read(self.selection.at(position, count, seed))

    def first(self, limit: int | None = None) -> list[Prompt]:
        """The prompts in the order of the file, at most the first `limit`."""
        return self._read(self.selection.first(limit))

    def answer(self, prompt: Prompt) -> str:
        """The right answer of a prompt, as `data.answer` renders it."""
        return render(self._data.answer, prompt.row, prompt.id)

    def _read(self, numbers: Sequence[int]) -> list[Prompt]:
        return read_prompts(self.selection.rows, numbers, self._tokenizer, self._data)

    def _lengths(self, rows: Rows, numbers: Sequence[int], contents: Sequence[Row]) -> list[str | None]:
        prompts = prompts_of(rows, numbers, contents, self._tokenizer, self._data)
        return [too_long(prompt, self._data.max_prompt_tokens) for prompt in prompts]
