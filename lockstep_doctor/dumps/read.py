"""Dumps of ids and log-probabilities of any framework: rows of lists become flat columns, one entry per token."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeGuard

import numpy as np
import torch
from torch import Tensor

from lockstep_doctor.column.columns import TokenColumns
from lockstep_doctor.dumps.errors import DumpError
from lockstep_doctor.dumps.names import KNOWN, TEXT_ALONE, FieldNames
from lockstep_doctor.dumps.tables import Row, read_rows

Zeros = Literal["ask", "context", "generated"]
"""Meanings of an exact 0 between others where there is no mask: of a turn that others wrote, or generated."""

LARGEST = 0.1
"""Nats above 0 that rounding may make of a log-probability."""

_AGREES = 0.01
_MOST_ID = 2.0**53
_EXPORTERS = "docs/guides/dumps.md has five lines that write them"
_NUMBERS = {"temperature": (0.0, 1e6), "top_p": (0.0, 1.0), "version": (-1e15, 1e15)}


@dataclass(frozen=True)
class Dump:
    """The content of a dump.

    Attributes:
        columns: Every token of every sequence without padding; NaN for a side that says nothing of it.
        train: Name of the column of the training side; None: there is none.
        infer: Of the inference side.
        notes: Sentences on what was guessed.
    """

    columns: TokenColumns
    train: str | None
    infer: str | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Sequence:
    """One sequence; `cut` of its entries were taken for context because they are 0."""

    train: Tensor
    infer: Tensor
    mask: Tensor
    ids: Tensor | None
    cut: int
    prompt: int | None
    told: Mapping[str, float] = field(default_factory=dict)
    cluster: str | None = None


def read_dump(path: Path | str, names: FieldNames | None = None, zeros: Zeros = "ask") -> Dump:
    """Reads a dump of one side's log-probabilities, or of both.

    Args:
        path: JSONL (gzip too), Parquet, safetensors, a `.pt` of slime, a `.pkl` of SkyRL, or a folder of such files.
        names: Of its columns, as far as they are not known.
        zeros: What exact zeros between other log-probabilities are where there is no mask.

    Raises:
        DumpError: It cannot be read, a column is missing, or a row does not hold what it should.
    """
    path, names = Path(path), names or FieldNames()
    wanted = {name for role in KNOWN for name in names.candidates(role)} | {"token", "id"}
    sides: dict[str, str | None] | None = None
    read: list[_Sequence] = []
    for where, written in read_rows(path, wanted):
        row = _flatten(written)
        sides = sides or _find_sides(where, row, written, names)
        read.append(_RowReader(where, row, names, sides, zeros).read())
    if sides is None or not any(bool(one.mask.any()) for one in read):
        raise DumpError(f"{path}: no token is left to compare; is the mask right?")
    cut = sum(one.cut for one in read)
    note = f"{path.name} has no mask: {cut} entries that are exactly 0 count as context, the others as generated."
    return Dump(_join(read), sides["train"], sides["infer"], (note,) if cut else ())


def _flatten(row: Row) -> Row:
    """A row as it is meant: NeMo RL writes batches of one, and a run of Lockstep has its tokens in one column."""
    token = row.get("token")
    if isinstance(token, Mapping) and {"logprob", "gap", "mask"} <= token.keys():
        train, gap = token["logprob"], token["gap"]
        if not isinstance(train, list) or not isinstance(gap, list):
            return {"train_logprobs": train, "infer_logprobs": gap}
        infer = [a - b if is_number(a) and is_number(b) else None for a, b in zip(train, gap, strict=False)]
        return {"train_logprobs": train, "infer_logprobs": infer, "mask": token["mask"], "prompt_id": row.get("id")}
    nested = [value for value in row.values() if isinstance(value, list) and len(value) == 1]
    if any(isinstance(value[0], list) for value in nested):
        return {name: value[0] if isinstance(value, list) and len(value) == 1 else value for name, value in row.items()}
    return row


def _find_sides(where: str, row: Row, written: Row, names: FieldNames) -> dict[str, str | None]:
    """The columns of both sides; one may be missing."""
    for role, name in names.list_named().items():
        if name not in row:
            raise DumpError(f"{where}: has no column {name!r}, which is to be {role}; there are {_list(row)}")
    found: dict[str, str | None] = {}
    for side in ("train", "infer"):
        there = [name for name in names.candidates(side) if row.get(name) is not None]
        if len(there) > 1:
            raise DumpError(f"{where}: {' and '.join(there)} could both be {side}; say {_how(side)}")
        found[side] = there[0] if there else None
    if found["train"] == found["infer"] is not None:
        raise DumpError(f"{where}: {found['train']} cannot be both sides")
    if found["train"] is None and found["infer"] is None:
        writer = next((who for columns, who in TEXT_ALONE.items() if columns <= written.keys()), None)
        whose = f"{writer} writes text alone" if writer else f"there are {_list(row)}"
        raise DumpError(
            f"{where}: has no column of log-probabilities; {whose}; {_EXPORTERS}; name others by {_how('train')}"
        )
    return found


def _how(role: str) -> str:
    """The way to name a column, in Python and on the command line."""
    return f"FieldNames({role}=…) or --{role}-column"


def _list(row: Row) -> str:
    return ", ".join(sorted(row)) or "none"


@dataclass(frozen=True)
class _RowReader:
    """Reads one row; where a column is shorter than the ids, it speaks of the last ones."""

    where: str
    row: Row
    names: FieldNames
    sides: Mapping[str, str | None]
    zeros: Zeros

    def read(self) -> _Sequence:
        ids = self._ids()
        columns = {side: self._tokens(name) for side, name in self.sides.items() if name is not None}
        lengths = {self.sides[side]: column.numel() for side, column in columns.items()}
        if len(set(lengths.values())) > 1:
            raise self._wrong(f"{_count(lengths)}; both must speak of the same tokens")
        spoken = next(iter(lengths.values()))
        total = spoken if ids is None else ids.numel()
        if spoken > total:
            raise self._wrong(f"{_count(lengths)} for {total} ids")
        behind = torch.arange(total) >= total - spoken
        train, infer = (
            _behind(columns[side], total, math.nan) if side in columns else torch.full((total,), math.nan).double()
            for side in ("train", "infer")
        )
        real = self._real(total)
        mask, cut = self._find_generated(train, infer, behind & real)
        for side in columns:
            self._check(str(self.sides[side]), (train if side == "train" else infer), mask, total - spoken)
        prompt = self._prompt_length(total)
        real &= mask.flip(0).cumsum(0).flip(0) > 0  # nothing behind the last one
        return _Sequence(
            train[real],
            infer[real],
            mask[real],
            None if ids is None else ids[real].long(),
            cut,
            None if prompt is None else int(real[:prompt].sum()),
            {role: self._number(name, *_NUMBERS[role]) for role in _NUMBERS if (name := self._name(role))},
            None if (name := self._name("prompt")) is None else str(self.row[name]),
        )

    def _name(self, role: str) -> str | None:
        """The first column of a role that holds something."""
        return next((name for name in self.names.candidates(role) if self.row.get(name) is not None), None)

    def _ids(self) -> Tensor | None:
        whole = next((name for name in self.names.candidates("ids") if self._holds_numbers(name)), None)
        parts = [
            next((name for name in KNOWN[role] if self._holds_numbers(name)), None)
            for role in ("prompt_ids", "response_ids")
        ]
        used = [whole] if whole is not None else [name for name in parts if name is not None]
        if not used or (whole is None and len(used) < len(parts)):
            return None  # a response without its prompt is no sequence
        ids = torch.cat([self._tokens(name) for name in used])
        wrong = ~((ids >= 0) & (ids < _MOST_ID) & (ids == ids.floor()))
        if bool(wrong.any()):
            entry = int(wrong.nonzero()[0])
            raise self._wrong(f"{' and '.join(used)}: {float(ids[entry]):g} at entry {entry} is no token id")
        return ids

    def _holds_numbers(self, name: str) -> bool:
        value = self.row.get(name)
        if isinstance(value, list | tuple):
            return not value or isinstance(value[0], int | float)
        return isinstance(value, Tensor | np.ndarray)

    def _real(self, total: int) -> Tensor:
        """The entries that are no padding, bool [T]."""
        real = torch.ones(total, dtype=torch.bool)
        if name := self._name("attention"):
            real &= self._flags(name, total, total)
        if name := self._name("prompt_attention"):
            prompt = self._tokens(name, flags=True) != 0
            real[: prompt.numel()] &= prompt
        if name := self._name("length"):
            real &= torch.arange(total) < self._number(name, 0, total)
        return real

    def _find_generated(self, train: Tensor, infer: Tensor, spoken: Tensor) -> tuple[Tensor, int]:
        """The entries that are compared, and how many are not because they are 0."""
        masks = [name for name in self.names.candidates("mask") if self.row.get(name) is not None]
        if masks:
            least = int(spoken.sum()) if self._name("attention") is None else 0
            each = [self._flags(name, spoken.numel(), least) for name in masks]
            return torch.stack([spoken, *each]).all(0), 0
        if (prompt := self._prompt_length(spoken.numel())) is not None:
            return spoken & (torch.arange(spoken.numel()) >= prompt), 0
        side = infer if self.sides["infer"] is not None else train
        zero = spoken & (side == 0)
        said = (spoken & ~zero).nonzero()
        if not len(said):
            return torch.zeros_like(spoken), int(zero.sum())
        entry = torch.arange(spoken.numel())
        between = zero & (entry > said[0]) & (entry < said[-1])
        if self.zeros == "generated":
            zero &= ~between
        elif self.zeros == "ask" and self.sides["train"] is not None and self.sides["infer"] is not None:
            odd = between & (train.abs() > _AGREES)
            if bool(odd.any()):
                raise self._ask(odd, f"where {self.sides['train']} is not")
            zero &= ~between
        elif self.zeros == "ask" and bool(between.any()):
            raise self._ask(between, "between others")
        return spoken & ~zero, int(zero.sum())

    def _ask(self, odd: Tensor, where: str) -> DumpError:
        return self._wrong(
            f"there is no mask, and {self.sides['infer'] or self.sides['train']} is exactly 0 at {int(odd.sum())} "
            f"entries, the first {int(odd.nonzero()[0])}, {where}: turns that the model did not write, or a fault? "
            f"Name the mask by {_how('mask')}, or say read_dump(…, zeros='context') or zeros='generated'"
        )

    def _prompt_length(self, total: int) -> int | None:
        name = self._name("prompt_length")
        return None if name is None else int(self._number(name, 0, total))

    def _check(self, name: str, side: Tensor, mask: Tensor, in_front: int) -> None:
        wrong = mask & (side.isnan() | (side > LARGEST))
        if bool(wrong.any()):
            entry = int(wrong.nonzero()[0])
            raise self._wrong(
                f"{name} has {float(side[entry]):g} at entry {entry - in_front}, which is no log-probability"
            )
        if bool(mask.any()) and bool((side[mask] > LARGEST / 10).all()):
            raise self._wrong(f"{name} is above 0 at every entry; write log-probabilities, not probabilities")

    def _flags(self, name: str, total: int, least: int) -> Tensor:
        flags = self._tokens(name, flags=True)
        if not bool(((flags == 0) | (flags == 1)).all()):
            raise self._wrong(f"{name} has entries besides 0 and 1")
        if not least <= flags.numel() <= total:
            raise self._wrong(f"{name} has {flags.numel()} entries for {least} log-probabilities and {total} tokens")
        return _behind(flags, total, 0.0) == 1

    def _tokens(self, name: str, flags: bool = False) -> Tensor:
        """A column of numbers, float64 [T]; NaN for null."""
        value = self.row.get(name)
        if isinstance(value, np.ndarray):
            value = torch.from_numpy(value)
        if isinstance(value, Tensor):
            if value.ndim != 1 or value.is_complex():
                raise self._wrong(f"{name} has shape {list(value.shape)}, and not one number per token")
            return value.double()
        if not isinstance(value, list | tuple):
            raise self._wrong(f"{name} is no list of numbers; write one entry for each token")
        for entry, one in enumerate(value):
            if not (one is None or (flags and isinstance(one, bool)) or is_number(one)):
                raise self._wrong(f"{name} has {str(one)[:40]!r} at entry {entry}, which is no number")
        return torch.tensor([math.nan if one is None else float(one) for one in value], dtype=torch.float64)

    def _number(self, name: str, least: float, most: float) -> float:
        value: object = self.row[name]
        if isinstance(value, Tensor | np.ndarray | np.generic) and np.size(value) == 1:
            value = value.item()
        if not is_number(value):
            raise self._wrong(f"{name} is {str(value)[:40]!r}, which is no number")
        if not least <= value <= most:
            raise self._wrong(f"{name} is {value:g}, and not from {least:g} to {most:g}")
        return float(value)

    def _wrong(self, what: str) -> DumpError:
        return DumpError(f"{self.where}: {what}")


def is_number(value: object) -> TypeGuard[int | float]:
    """True for what a float can hold; Python's JSON has NaN, infinity and endless integers."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, float) or abs(value) < _MOST_ID


def _count(lengths: Mapping[str | None, int]) -> str:
    return " and ".join(f"{name} has {number} entries" for name, number in lengths.items())


def _behind(column: Tensor, total: int, fill: float) -> Tensor:
    """A column with what it does not speak of in front."""
    return torch.cat([torch.full((total - column.numel(),), fill, dtype=torch.float64), column])


def _join(read: Sequence[_Sequence]) -> TokenColumns:
    lengths = torch.tensor([one.train.numel() for one in read])
    numbers: dict[str | None, int] = {}
    clusters = [numbers.setdefault(one.cluster, len(numbers)) for one in read]

    def collect(role: str) -> Tensor | None:
        values = [one.told.get(role) for one in read]
        known = [value for value in values if value is not None]
        return torch.tensor(known, dtype=torch.float64) if len(known) == len(values) else None

    ids = [one.ids for one in read if one.ids is not None]
    prompts = [one.prompt for one in read if one.prompt is not None]
    return TokenColumns(
        torch.cat([one.train for one in read]),
        torch.cat([one.infer for one in read]),
        torch.cat([one.mask for one in read]),
        torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]),
        torch.cat(ids) if len(ids) == len(read) else None,
        None,
        torch.tensor(prompts) if len(prompts) == len(read) else None,
        collect("version"),
        collect("temperature"),
        collect("top_p"),
        torch.tensor(clusters) if None not in numbers else None,
    )
