"""A run's samples for a page: a small index, and blocks that are opened on demand."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from lockstep.core.errors import InputError
from lockstep.report.log import SAMPLES, read_lines

TOKEN_COLUMNS = ("mask", "logprob", "gap", "value", "advantage", "reward", "return", "kl")

_LOGGED = ("step", "score", "shaped_score", "tokens", "truncated", "held_out")
_PAIR = (
    "status",
    "scores",
    "rejected",
    "rejected_score",
    "chosen_judgments",
    "rejected_judgments",
)
_PART = "reward/"  # prefix of the parts of a sum of rewards
_BEGINNING = 96  # characters of each response in the index
_NO_GAP = -10
_TOKENS_PER_BLOCK = 16384
_ROWS_PER_BLOCK = 1024

StoreFunction = Callable[[int, bytes], object]
"""Function that stores a block under its number."""


def pack_samples(folder: Path, store: StoreFunction) -> bytes:
    """Reads a run's samples once, passes full blocks to `store`, and returns the index.

    The index has a row per sample, in the order of the log, with the columns `step`, `score`,
    `shaped_score`, `tokens`, `truncated`, `held_out` (1 for a held-out prompt), `prompt` (a
    number), `block` and `place` (its row in the block); and in its header the `prompts` (`id` and
    beginning of each), the `responses`' beginnings, one per line, and the `gaps`: how many trained
    tokens have a |Δ| of each power of ten. Missing values are null.

    Raises:
        InputError: A column of a response's tokens has a different length.
    """
    index: dict[str, list[_SampleNumber]] = {
        name: [] for name in (*_LOGGED, "prompt", "block", "place")
    }
    prompts: dict[str, tuple[int, str]] = {}
    responses: list[str] = []
    gaps: Counter[int] = Counter()
    number = 0
    block = _SampleBlock()
    for row, _ in read_lines(folder / SAMPLES):
        if block.is_full:
            store(number, block.pack_block())
            number = number + 1
            block = _SampleBlock()
        prompt = str(row.get("prompt", ""))
        own = {name: row.get(name, row.get(f"chosen_{name}")) for name in _LOGGED}
        own["prompt"], _ = prompts.setdefault(str(row.get("id", prompt)), (len(prompts), prompt))
        for name, value in {**own, "block": number, "place": len(block.rows)}.items():
            index[name].append(value)
        responses.append(_shorten_text(_find_response(row)))
        gaps.update(_list_gaps(row.get("token") or {}))
        block.add_row(row)
    if block.rows:
        store(number, block.pack_block())
    named = [[name, _shorten_text(prompt)] for name, (_, prompt) in prompts.items()]
    header = {"count": len(responses), "prompts": named, "responses": "\n".join(responses)}
    return _pack_table({**header, "gaps": sorted(gaps.items())}, index)


def _list_gaps(token: Mapping[str, Any]) -> Iterator[int]:
    """The power of ten of each trained token's |Δ|; for 0, `_NO_GAP`."""
    for gap, trained in zip(token.get("gap", ()), token.get("mask", ()), strict=False):
        if trained and isinstance(gap, float) and math.isfinite(gap):
            yield max(_NO_GAP + 1, math.floor(math.log10(abs(gap)))) if gap else _NO_GAP


_SampleNumber = Literal["Infinity", "-Infinity"] | float | bool | None
"""A number as encoded in logs."""


class _SampleBlock:
    """Neighboring samples with their texts and their tokens' columns."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self._columns: dict[str, list[Any]] = {name: [] for name in TOKEN_COLUMNS}
        self._tokens = 0

    @property
    def is_full(self) -> bool:
        return self._tokens >= _TOKENS_PER_BLOCK or len(self.rows) >= _ROWS_PER_BLOCK

    def add_row(self, row: Mapping[str, Any]) -> None:
        columns = row.get("token") or {}
        texts = columns.get("text", ())
        about = {name: row.get(name) for name in ("prompt", "answer", "logged_as")}
        pair = {name: row[name] for name in _PAIR if name in row}
        parts = {
            name.removeprefix(_PART): value for name, value in row.items() if name.startswith(_PART)
        }
        where = {"response": _find_response(row), "texts": texts, "begin": self._tokens}
        self.rows.append({**about, **pair, "parts": parts, **where})
        self._tokens += len(texts)
        if not texts:
            return
        for name, values in self._columns.items():
            own = columns.get(name) or [None] * len(texts)
            if len(own) != len(texts):
                raise InputError(
                    f"a sample's {name} and tokens have different lengths; restore {SAMPLES} or "
                    "remove it"
                )
            values.extend(own)

    def pack_block(self) -> bytes:
        columns: dict[str, list[_SampleNumber]] = {}
        for name, values in self._columns.items():
            if any(value is not None for value in values):
                columns[name] = [_round_number(value) for value in values]
        return _pack_table({"rows": self.rows}, columns)


def _pack_table(header: Mapping[str, Any], columns: Mapping[str, Sequence[_SampleNumber]]) -> bytes:
    """A table for `unpack` of `page/data.js`."""
    return json.dumps({"header": header, "columns": columns}).encode()


def _round_number(value: _SampleNumber) -> _SampleNumber:
    """A number with four digits."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    return value


def _find_response(row: Mapping[str, Any]) -> str:
    """Returns the response of a row; for a pair, the preferred answer."""
    return str(row.get("response", row.get("chosen", "")))


def _shorten_text(text: str) -> str:
    """The beginning of a text on one line."""
    return text[:_BEGINNING].replace("\n", "⏎")
