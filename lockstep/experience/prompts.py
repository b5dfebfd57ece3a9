"""Prompts from rows: templates, tokens, and which rows a step takes.

Nothing is dropped and nothing is remembered: which row stands at a position of the run is a pure function of position
and seed. So a resumed run needs to know one number, and an epoch's last rows are never lost to a batch size.
"""

from __future__ import annotations

import functools
import json
import string
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from lockstep import keyed
from lockstep.experience.jsonl import DataError, JsonlIndex
from lockstep.recipe import DataSection
from lockstep.types import Prompt

_ROWS_AT_ONCE = 1024  # rows that are tokenised in one call while the data is gone over


def render(template: str, row: Mapping[str, Any], where: str) -> str:
    """Fills `{field}` in a template from a row; `{{` and `}}` stand for braces.

    Strings go in as they are, numbers, booleans, lists and objects as JSON.

    Args:
        template: The text around the fields.
        row: The row that has the fields.
        where: How a message names the row.

    Raises:
        DataError: The row has no such field, or null in it.
        ValueError: The template is malformed.
    """
    return "".join(literal + (_field(row, name, template, where) if name else "") for literal, name in _parts(template))


@functools.lru_cache(maxsize=64)
def _parts(template: str) -> tuple[tuple[str, str | None], ...]:
    """A template as pairs of literal text and the field that follows it."""
    parts = []
    try:
        parsed = list(string.Formatter().parse(template))
    except ValueError as error:
        raise ValueError(f"template {template!r} is malformed ({error}); write braces as {{{{ and }}}}") from error
    for literal, name, spec, conversion in parsed:
        if name == "" or spec or conversion:
            raise ValueError(
                f"template {template!r}: only plain fields like {{question}} can be filled in; write "
                "braces as {{ and }}"
            )
        parts.append((literal, name))
    return tuple(parts)


def _field(row: Mapping[str, Any], name: str, template: str, where: str) -> str:
    if row.get(name) is None:
        state = "null in it" if name in row else "no such field"
        raise DataError(
            f"{where}: template {template!r} asks for '{name}', but the row has {state}; "
            f"its fields are {', '.join(row) or 'none'}"
        )
    value = row[name]
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def read_prompts(
    index: JsonlIndex, rows: Sequence[int], tokenizer: PreTrainedTokenizerBase, data: DataSection
) -> list[Prompt]:
    """Reads, renders and tokenises rows; the same rows always give the same prompts, whatever their length.

    A plain prompt gets the special tokens that the tokenizer puts around text; a chat template brings its own.
    """
    if not rows:
        return []
    contents = index.rows(rows)
    texts = [render(data.prompt, row, index.where(i)) for i, row in zip(rows, contents, strict=True)]
    if data.chat:
        texts = [_chat(text, tokenizer, data.system_prompt) for text in texts]
    tokens = token_ids(tokenizer, texts, add_special_tokens=not data.chat)
    return [
        Prompt(f"{index.path.name}:{index.line_number(i)}", text, tuple(ids), row)
        for i, text, ids, row in zip(rows, texts, tokens, contents, strict=True)
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


def fitting_rows(
    index: JsonlIndex, complaints: Callable[[Sequence[int]], list[str | None]], overlong: Literal["error", "skip"]
) -> array[int]:
    """Goes over all rows once and keeps the numbers of those that fit, so that an epoch's length is known up front.

    The tokens are thrown away and made again when a row is used: only one integer per row stays in memory.

    Args:
        index: The data.
        complaints: For some rows, what is wrong with the length of each; None where nothing is.
        overlong: What to do about a complaint.

    Raises:
        DataError: A row complained of, with `overlong` "error"; or no row fits.
    """
    kept = array("Q")
    for start in range(0, len(index), _ROWS_AT_ONCE):
        rows = range(start, min(start + _ROWS_AT_ONCE, len(index)))
        for row, complaint in zip(rows, complaints(rows), strict=True):
            if complaint is None:
                kept.append(row)
            elif overlong == "error":
                raise DataError(f"{index.where(row)}: {complaint}; raise the limit, or set data.overlong_prompts=skip")
    if not kept:
        raise DataError(f"{index.path}: all {len(index)} rows are over-long; raise data.max_prompt_tokens")
    return kept


def too_long(prompt: Prompt, max_prompt_tokens: int) -> str | None:
    """What is wrong with a prompt's length, if anything."""
    if len(prompt.tokens) <= max_prompt_tokens:
        return None
    return f"the prompt has {len(prompt.tokens)} tokens, more than data.max_prompt_tokens={max_prompt_tokens}"


@functools.lru_cache(maxsize=4)
def order(length: int, epoch: int, seed: int, shuffle: bool) -> Tensor | range:
    """The order of `length` rows in an epoch (counted from 0)."""
    return keyed.permutation(length, seed, "order of rows", epoch) if shuffle else range(length)


def rows_at(position: int, count: int, length: int, seed: int, shuffle: bool) -> list[int]:
    """Which of `length` rows stand at `position` … `position + count − 1` of a run.

    Position p is row p mod `length` of epoch p div `length`, so a batch may reach into the next epoch.

    Args:
        position: How many rows the run has taken before.
        count: How many to take.
        length: Rows in the data.
        seed: Key of the orders.
        shuffle: Whether each epoch has an order of its own.
    """
    places = (divmod(p, length) for p in range(position, position + count))
    return [int(order(length, epoch, seed, shuffle)[place]) for epoch, place in places]


class Prompts:
    """The prompts of a data file, read and tokenised when asked for.

    Args:
        index: The rows.
        tokenizer: The model's.
        data: Templates, limits, and whether to shuffle.

    Raises:
        DataError: A row lacks a field of a template, or is over-long and not to be skipped.
        ValueError: A template is malformed, or a chat template is wanted and missing.
    """

    def __init__(self, index: JsonlIndex, tokenizer: PreTrainedTokenizerBase, data: DataSection) -> None:
        self._index = index
        self._tokenizer = tokenizer
        self._data = data
        self._kept = fitting_rows(index, self._complaints, data.overlong_prompts)

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, i: int) -> Prompt:
        return self._read([i])[0]

    @property
    def num_overlong(self) -> int:
        """How many rows were skipped because their prompt is too long."""
        return len(self._index) - len(self)

    @property
    def skipped(self) -> int:
        """How many lines of the file are not used: bad ones and over-long ones."""
        return self._index.skipped + self.num_overlong

    def at(self, position: int, count: int, seed: int) -> list[Prompt]:
        """The prompts at `position` … `position + count − 1` of a run; see `rows_at`."""
        return self._read(rows_at(position, count, len(self), seed, self._data.shuffle))

    def first(self, limit: int | None = None) -> list[Prompt]:
        """The prompts in the order of the file, at most the first `limit`."""
        return self._read(range(len(self))[:limit])

    def answer(self, prompt: Prompt) -> str:
        """The right answer of a prompt, as `data.answer` renders it."""
        return render(self._data.answer, prompt.row, prompt.id)

    def _read(self, indices: Iterable[int]) -> list[Prompt]:
        return read_prompts(self._index, [self._kept[i] for i in indices], self._tokenizer, self._data)

    def _complaints(self, rows: Sequence[int]) -> list[str | None]:
        prompts = read_prompts(self._index, rows, self._tokenizer, self._data)
        for i, prompt in zip(rows, prompts, strict=True):
            # Rendered for its errors: a row without an answer should stop a run before it starts, not at step 40.
            render(self._data.answer, prompt.row, self._index.where(i))
        return [too_long(prompt, self._data.max_prompt_tokens) for prompt in prompts]
