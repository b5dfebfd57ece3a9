"""A run's samples for a page: a light index of all of them, and blocks with the rest that are opened when needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from lockstep.errors import InputError
from lockstep.records import first_fault
from lockstep.report.columns import pack, shorten
from lockstep.report.log import SAMPLES, lines

TOKEN_COLUMNS = ("mask", "logprob", "gap", "value", "advantage", "reward", "return", "kl")

_LOGGED = ("step", "score", "shaped_score", "tokens", "truncated", "held_out")
_PAIR = ("status", "scores", "scored_by", "rejected", "rejected_score", "chosen_judgements", "rejected_judgements")
_PART = "reward/"  # of a sum of rewards
_BEGINNING = 96  # characters of a response that the index has
_TOKENS_PER_BLOCK, _ROWS_PER_BLOCK = 16384, 1024

Store = Callable[[int, bytes], object]
"""Function that stores a block under its number."""


def pack_samples(folder: Path, store: Store) -> bytes:
    """Reads the samples of a run once, hands on full blocks as they come, and returns the index.

    The index has a row per sample, in the order of the log, with the columns `step`, `score`, `shaped_score`, `tokens`,
    `truncated`, `held_out` (1: of a prompt that is not trained on), `prompt` (a number), `block` and `place` (which row
    of it); and in its header the `prompts` (`id` and beginning of each) and the `responses`' beginnings, one per line.
    What a row of the log lacks is NaN.

    Raises:
        InputError: If a row holds something else than the log of samples does.
    """
    index, block = _Index(), _Block()
    number = 0
    for place, (row, _) in enumerate(lines(folder / SAMPLES), 1):
        _require_sample(row, f"{folder / SAMPLES}:{place}")
        if block.full:
            store(number, block.pack())
            number, block = number + 1, _Block()
        index.add(row, number, block.rows)
        block.add(row)
    if block.rows:
        store(number, block.pack())
    return index.pack()


_Number = Literal["Infinity", "-Infinity"] | Annotated[float, Field(allow_inf_nan=False)] | bool | None
"""A number as logs have it."""


_Column = list[_Number] | None


class _LoggedTokens(BaseModel):
    """Columns of a response's tokens, those that are there as long as its text."""

    model_config = ConfigDict(strict=True)
    text: list[str] = []
    mask: _Column = None
    logprob: _Column = None
    gap: _Column = None
    value: _Column = None
    advantage: _Column = None
    reward: _Column = None
    returns: _Column = Field(default=None, alias="return")
    kl: _Column = None

    @model_validator(mode="after")
    def _is_even(self) -> _LoggedTokens:
        for name, column in vars(self).items():
            if column is not None and len(column) != len(self.text):
                raise ValueError(f"{name} is not as long as text")
        return self


class _LoggedSample(BaseModel):
    """The fields of a sample that a page counts on."""

    model_config = ConfigDict(strict=True)
    prompt: str = ""
    response: str = ""
    chosen: str = ""
    score: _Number = None
    shaped_score: _Number = None
    tokens: _Number = None
    truncated: _Number = None
    held_out: _Number = None
    token: _LoggedTokens | None = None


def _require_sample(row: Mapping[str, Any], where: str) -> None:
    """Raises InputError unless a row is a sample."""
    try:
        _LoggedSample.model_validate(row)
    except ValidationError as error:
        raise InputError(f"{where} is no sample ({first_fault(error)}); restore the file or remove it") from None


class _Index:
    """The index of samples: the columns that their table shows, sorts and filters by."""

    def __init__(self) -> None:
        self._logged: dict[str, list[float | None]] = {name: [] for name in _LOGGED}
        self._places: dict[str, list[int]] = {"prompt": [], "block": [], "place": []}
        self._prompts: dict[str, tuple[int, str]] = {}
        self._responses: list[str] = []

    def add(self, row: Mapping[str, Any], block: int, place: int) -> None:
        prompt = row.get("prompt", "")
        number, _ = self._prompts.setdefault(row.get("id", prompt), (len(self._prompts), prompt))
        for name, at in (("prompt", number), ("block", block), ("place", place)):
            self._places[name].append(at)
        for name, values in self._logged.items():
            values.append(row.get(name, row.get(f"chosen_{name}")))
        self._responses.append(_line(_response(row)))

    def pack(self) -> bytes:
        prompts = [[name, _line(text)] for name, (_, text) in self._prompts.items()]
        return pack({"prompts": prompts, "responses": "\n".join(self._responses)}, {**self._logged, **self._places})


class _Block:
    """Neighboring samples with their texts and their tokens' columns."""

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []
        self._columns: dict[str, list[Any]] = {name: [] for name in TOKEN_COLUMNS}
        self._tokens = 0

    @property
    def rows(self) -> int:
        return len(self._rows)

    @property
    def full(self) -> bool:
        return self._tokens >= _TOKENS_PER_BLOCK or self.rows >= _ROWS_PER_BLOCK

    def add(self, row: Mapping[str, Any]) -> None:
        columns = row.get("token") or {}
        texts = columns.get("text", ())
        about = {name: row.get(name) for name in ("prompt", "answer", "logged_as")}
        pair = {name: row[name] for name in _PAIR if name in row}
        parts = {name.removeprefix(_PART): value for name, value in row.items() if name.startswith(_PART)}
        where = {"response": _response(row), "texts": texts, "begin": self._tokens}
        self._rows.append({**about, **pair, "parts": parts, **where})
        self._tokens += len(texts)
        if not texts:
            return
        for name, values in self._columns.items():
            values.extend(columns.get(name) or [None] * len(texts))

    def pack(self) -> bytes:
        columns = {
            name: shorten(values) for name, values in self._columns.items() if any(v is not None for v in values)
        }
        return pack({"rows": self._rows}, columns)


def _response(row: Mapping[str, Any]) -> str:
    """Returns the response of a row; of a pair, the answer that was preferred."""
    return row.get("response", row.get("chosen", ""))


def _line(text: str) -> str:
    """The beginning of a text on one line."""
    return text[:_BEGINNING].replace("\n", "⏎")
