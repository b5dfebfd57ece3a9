"""Rollout dumps of any framework: one row per sequence, with both sides' log-probabilities of its tokens as lists.

Columns are known by the names that frameworks give them, and by any other name where that is told:

    train           NeMo RL `prev_logprobs` · verl `old_log_probs` · TRL `old_per_token_logps` · slime `log_probs` ·
                    prime-rl `trainer_logprobs`
    infer           NeMo RL `generation_logprobs` · verl, slime `rollout_log_probs` · TRL `sampling_per_token_logps` ·
                    prime-rl `inference_logprobs`
    mask            NeMo RL `token_loss_mask` · verl `response_mask` · TRL `completion_mask` · slime `loss_mask`

`samples.jsonl` of a run of PPO is such a dump, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lockstep.borders import LARGEST_LOGPROB
from lockstep.data.files import FileGroup, open_rows
from lockstep.data.notes import Ticker
from lockstep.data.rows import DataError, Rows, read_number
from lockstep.errors import shorten
from lockstep_doctor.statistics import Compared

_ROWS_AT_ONCE = 64


@dataclass(frozen=True)
class Columns:
    """Names of a dump's columns; None: the first name known for it that is there, if any.

    Attributes:
        train: Log-probabilities of the training side, a list in each row.
        infer: Of the inference side, as long.
        ids: Token ids; there may be more of them, in front.
        mask: 1 or true for the tokens that were generated.
        prompt_length: How many entries, from the front, are prompt.
        temperature: That the row was drawn at.
        top_p: That it was drawn with.
        version: Of the weights that drew it.
        prompt: Rows that answer the same one have the same value.
    """

    train: str | None = None
    infer: str | None = None
    ids: str | None = None
    mask: str | None = None
    prompt_length: str | None = None
    temperature: str | None = None
    top_p: str | None = None
    version: str | None = None
    prompt: str | None = None


KNOWN: Mapping[str, tuple[str, ...]] = {
    "train": (
        "train_logprobs",
        "prev_logprobs",
        "old_log_probs",
        "old_per_token_logps",
        "trainer_logprobs",
        "log_probs",
    ),
    "infer": (
        "infer_logprobs",
        "generation_logprobs",
        "rollout_log_probs",
        "sampling_per_token_logps",
        "inference_logprobs",
    ),
    "ids": ("ids", "token_ids", "input_ids", "completion_ids", "responses", "tokens"),
    "mask": ("mask", "token_loss_mask", "response_mask", "completion_mask", "loss_mask"),
    "prompt_length": ("prompt_length",),
    "temperature": ("temperature",),
    "top_p": ("top_p",),
    "version": ("weight_version", "version"),
    "prompt": ("prompt_id", "uid", "group_index"),
}
_NEEDED = {"train": "the training side", "infer": "the inference side"}
_NUMBERS = {"temperature": (0.0, 1e6), "top_p": (0.0, 1.0), "version": (-1e15, 1e15)}
"""Columns of a number each, and its bounds."""
_MOST_ID = 2.0**53


@dataclass(frozen=True)
class Dump:
    """What a dump says.

    Attributes:
        compared: Both sides on the generated tokens.
        ids: Their ids, int64 [M]; None where the dump has none.
        temperature: Of each sequence [B]; None where the dump does not say, as for the next two.
        top_p: Of each sequence [B].
        version: Of the weights that drew each sequence [B].
        columns: What was read; None for what is not there.
        digest: Fingerprint of the file.
        notes: Sentences on what was left out, or guessed.
    """

    compared: Compared
    ids: Tensor | None
    temperature: Tensor | None
    top_p: Tensor | None
    version: Tensor | None
    columns: Columns
    digest: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Row:
    """One sequence, cut to the compared tokens; `cut` of them had no mask and a 0 for the inference side."""

    train: Tensor
    infer: Tensor
    position: Tensor
    ids: Tensor | None
    told: Mapping[str, float]
    prompt: Any
    cut: int


def read_dump(file: Path, columns: Columns) -> Dump:
    """Reads a dump.

    Args:
        file: JSONL, packed or not, Parquet, or a folder of a Hugging Face data set.
        columns: Names of its columns, as far as they are others than those known.

    Raises:
        DataError: It cannot be read, a column is missing, or a row does not hold what it should.
    """
    rows = open_rows(FileGroup((file,)))
    found = _found(file, _plain(rows.rows([0])[0]), columns)
    read = list(_sequences(rows, found))
    if not sum(row.train.numel() for row in read):
        raise DataError(f"{file}: no token is left to compare; is {found.mask or found.prompt_length} right?")
    cut = sum(row.cut for row in read)
    notes = [] if found.mask else ["The dump has no mask: every token counts as generated."]
    if cut:
        notes = [f"The dump has no mask: {cut} entries at ends of rows, where the inference side says 0, are left out."]
    return Dump(
        _compared(read, found),
        torch.cat([row.ids for row in read if row.ids is not None]) if found.ids else None,
        _per_row(read, "temperature"),
        _per_row(read, "top_p"),
        _per_row(read, "version"),
        found,
        rows.digest,
        tuple(notes),
    )


def _plain(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """A row; one of a run's own samples as a dump has it: columns of tokens beside each other, and no differences."""
    token = row.get("token")
    if not isinstance(token, Mapping) or not {"logprob", "gap", "mask"} <= token.keys():
        return row
    train, gap = token["logprob"], token["gap"]
    even = isinstance(train, list) and isinstance(gap, list) and len(train) == len(gap)
    infer = [_less(own, apart) for own, apart in zip(train, gap, strict=True)] if even else gap
    return {"train_logprobs": train, "infer_logprobs": infer, "mask": token["mask"], "prompt_id": row.get("id")}


def _less(own: Any, apart: Any) -> Any:
    """The inference side's log-probability; None, which is refused by its place, where one of them is no number."""
    train, gap = read_number(own), read_number(apart)
    return None if train is None or gap is None else train - gap


def _found(file: Path, row: Mapping[str, Any], columns: Columns) -> Columns:
    """The columns by the names they have in this dump."""
    names: dict[str, str | None] = {}
    there = ", ".join(sorted(row))
    for role, told in vars(columns).items():
        known = [name for name in KNOWN[role] if name in row]
        option = f"--{role.replace('_', '-')}-column"
        if told is not None and told not in row:
            raise DataError(f"{file}: has no column '{told}', which {option} names; there are {there}")
        if told is None and role in _NEEDED and len(known) != 1:
            what = f"{' and '.join(known)} could both be meant" if known else f"there are {there}"
            raise DataError(f"{file}: which column has the log-probabilities of {_NEEDED[role]}? {what}; say {option}")
        names[role] = told or next(iter(known), None)
    if names["train"] == names["infer"]:
        raise DataError(f"{file}: {names['train']} cannot be both sides; say another --infer-column")
    return Columns(**names)


def _sequences(rows: Rows, columns: Columns) -> Iterator[_Row]:
    ticker = Ticker("reading the dump", len(rows))
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        numbers = range(start, min(start + _ROWS_AT_ONCE, len(rows)))
        for i, row in zip(numbers, rows.rows(numbers), strict=True):
            yield _sequence(rows.where(i), _plain(row), columns)
        ticker.at(numbers.stop)


def _sequence(where: str, row: Mapping[str, Any], columns: Columns) -> _Row:
    train, infer = _list(where, row, str(columns.train)), _list(where, row, str(columns.infer))
    tokens = train.numel()
    if infer.numel() != tokens:
        raise DataError(
            f"{where}: {columns.train} has {tokens} entries, but {columns.infer} {infer.numel()}; both must speak of "
            "the same tokens"
        )
    ids = None if columns.ids is None else _whole(where, columns.ids, _behind(where, row, columns.ids, tokens))
    keep, cut = _generated(where, row, columns, infer)
    for name, side in ((columns.train, train), (columns.infer, infer)):
        wrong = keep & (side.isnan() | (side > LARGEST_LOGPROB))
        if bool(wrong.any()):
            entry = int(wrong.nonzero()[0])
            raise DataError(f"{where}: {name} has {float(side[entry])} at entry {entry}, which is no log-probability")
        if bool(keep.any()) and bool((side[keep] > LARGEST_LOGPROB / 10).all()):
            raise DataError(f"{where}: {name} is above 0 at every entry; write log-probabilities, not probabilities")
    in_front = 0 if columns.ids is None else len(row[columns.ids]) - tokens
    told = {
        role: _number(where, row, name, *_NUMBERS[role])
        for role, name in vars(columns).items()
        if name and role in _NUMBERS
    }
    return _Row(
        train[keep],
        infer[keep],
        torch.arange(in_front, in_front + tokens)[keep],
        None if ids is None else ids[keep].long(),
        told,
        None if columns.prompt is None else json.dumps(row.get(columns.prompt), default=str),
        cut,
    )


def _generated(where: str, row: Mapping[str, Any], columns: Columns, infer: Tensor) -> tuple[Tensor, int]:
    """Which entries are compared, bool; and how many are not because of a guess.

    Without a mask or the length of the prompt, padding and prompt show as zeros at the ends of the inference side.
    """
    if columns.mask is not None:
        mask = _behind(where, row, columns.mask, infer.numel(), flags=True)
        if not bool(((mask == 0) | (mask == 1)).all()):
            raise DataError(
                f"{where}: {columns.mask} has entries besides 0 and 1; write 1 for each token of a response, else 0"
            )
        return mask == 1, 0
    entry = torch.arange(infer.numel())
    if columns.prompt_length is not None:
        return entry >= _number(where, row, columns.prompt_length, 0, infer.numel()), 0
    said = (infer != 0).nonzero()
    if not said.numel():
        return torch.zeros_like(infer, dtype=torch.bool), infer.numel()
    keep = (entry >= said[0]) & (entry <= said[-1])
    return keep, int((~keep).sum())


def _behind(where: str, row: Mapping[str, Any], name: str, tokens: int, flags: bool = False) -> Tensor:
    """A list's last entries, one for each log-probability; those in front speak of the prompt."""
    entries = _list(where, row, name, flags)
    if entries.numel() < tokens:
        raise DataError(f"{where}: {name} has {entries.numel()} entries for {tokens} log-probabilities")
    return entries[entries.numel() - tokens :]


def _list(where: str, row: Mapping[str, Any], name: str, flags: bool = False) -> Tensor:
    values = row.get(name)
    if not isinstance(values, list):
        raise DataError(f"{where}: {name} is no list of numbers; write one entry for each token")
    for entry, value in enumerate(values):
        if not (read_number(value) is not None or isinstance(value, float) or (isinstance(value, bool) and flags)):
            raise DataError(f"{where}: {name} has {shorten(repr(value))} at entry {entry}, which is no number")
    return torch.tensor(values, dtype=torch.float64)


def _whole(where: str, name: str, ids: Tensor) -> Tensor:
    """Token ids, which are whole numbers from 0 on."""
    wrong = ~((ids >= 0) & (ids < _MOST_ID) & (ids == ids.floor()))
    if bool(wrong.any()):
        entry = int(wrong.nonzero()[0])
        raise DataError(
            f"{where}: {name} has {float(ids[entry]):g} at entry {entry}, which is no token id; correct the row"
        )
    return ids


def _number(where: str, row: Mapping[str, Any], name: str, least: float, most: float) -> float:
    number = read_number(row.get(name))
    if number is None:
        raise DataError(f"{where}: {name} is {shorten(repr(row.get(name)))}, which is no number; correct the row")
    if not least <= number <= most:
        raise DataError(f"{where}: {name} is {number:g}, and not from {least:g} to {most:g}; correct the row")
    return number


def _compared(read: Sequence[_Row], columns: Columns) -> Compared:
    numbers: dict[Any, int] = {}
    cluster = [numbers.setdefault(row.prompt, len(numbers)) for row in read]
    return Compared(
        torch.cat([row.train for row in read]),
        torch.cat([row.infer for row in read]),
        torch.tensor([row.train.numel() for row in read]),
        torch.cat([row.position for row in read]),
        None if columns.prompt is None else torch.tensor(cluster),
    )


def _per_row(read: Sequence[_Row], role: str) -> Tensor | None:
    if role not in read[0].told:
        return None
    return torch.tensor([row.told[role] for row in read], dtype=torch.float64)
