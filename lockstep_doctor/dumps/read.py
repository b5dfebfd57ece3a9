"""Reads dumps of token ids and log-probabilities of any framework: rows of lists become flat
columns, one entry per token.

Code in a file is never run: only tensors and plain containers are read.
"""

from __future__ import annotations

import gzip
import json
import math
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

from lockstep_doctor.columns import Bools, Floats, RowFact, TokenColumns
from lockstep_doctor.dumps.names import KNOWN, DumpError, FieldNames

DumpRow = Mapping[str, Any]
"""Columns of one sequence by name: lists, tensors, numbers, strings."""

_REBUILD = {"_reconstruct": np.zeros(1).__reduce__()[0], "scalar": np.float64(0).__reduce__()[0]}
_ARRAYS: list[Any] = [
    np.ndarray,
    np.dtype,
    *(
        type(np.dtype(name))
        for name in ("bool", "int8", "uint8", "int16", "int32", "int64", "float32", "float64")
    ),
    *(
        (one, f"numpy.{core}.multiarray.{name}")
        for name, one in _REBUILD.items()
        for core in ("core", "_core")
    ),
]
"""Globals in pickled arrays and numbers of numpy 1 and 2."""

_ADVICE = (
    "write only tensors, numbers, strings, lists and dicts: docs/guides/dumps.md has five lines "
    "for each library"
)

LARGEST = 0.1
"""Largest log-probability above 0 that rounding may cause, nats."""

_CERTAIN = 0.01
"""An exact 0 may be right if the other side's log-probability is this close to 0, nats."""
_MOST_ID = 2.0**53
_EXPORTERS = "docs/guides/dumps.md has five lines that write them"


@dataclass(frozen=True)
class Dump:
    """The content of a dump.

    Attributes:
        columns: All tokens of all sequences without padding; NaN if a side has no value.
        train: Name of the training side's column; None if missing.
        infer: Name of the inference side's column; None if missing.
    """

    columns: TokenColumns
    train: str | None
    infer: str | None


def read_dump(path: Path | str, names: FieldNames | None = None) -> Dump:
    """Reads a dump with one or both sides' log-probabilities. Ids and facts that some rows lack are
    left out.

    Args:
        path: JSONL (gzip too), safetensors, a `.pt`, or a folder of such files.
        names: Names of columns that are not in `KNOWN`.

    Raises:
        DumpError: The file cannot be read, a column is missing, or a row is invalid.
    """
    path = Path(path)
    names = names or FieldNames()
    wanted = set[str]().union(*map(names.list_candidates, KNOWN))
    sides: dict[str, str | None] = {}
    prompts: dict[str, int] = {}
    read = list[TokenColumns]()
    for where, row in read_rows(path, wanted):
        # NeMo RL writes rows with a batch dimension of 1
        lists = {name: value for name, value in row.items() if isinstance(value, list)}
        single = {name: value[0] for name, value in lists.items() if len(value) == 1}
        if any(isinstance(value, list) for value in single.values()):
            row = {**row, **single}
        sides = sides or _find_sides(where, row, names)
        read.append(_RowReader(where, row, names, sides, prompts).read_columns())
    if not any(bool(one.mask.any()) for one in read):
        raise DumpError(f"{path}: no token is left to compare; check the mask")
    ids = [one.ids for one in read if one.ids is not None]
    facts = dict[RowFact, Tensor]()
    for name in read[0].facts:
        if all(name in one.facts for one in read):
            facts[name] = torch.cat([one.facts[name] for one in read])
    lengths = torch.cat([one.row_lengths for one in read])
    columns = TokenColumns(
        torch.cat([one.train for one in read]),
        torch.cat([one.infer for one in read]),
        torch.cat([one.mask for one in read]),
        torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]),
        torch.cat(ids) if len(ids) == len(read) else None,
        facts,
    )
    return Dump(columns, sides["train"], sides["infer"])


def _find_sides(where: str, row: DumpRow, names: FieldNames) -> dict[str, str | None]:
    """Finds the columns of both sides; one may be missing."""
    there = ", ".join(sorted(row)) or "none"
    for role, name in vars(names).items():
        if name is not None and name not in row:
            raise DumpError(f"{where}: missing column {name!r} for {role}; found: {there}")
    found: dict[str, str | None] = {}
    for side in ("train", "infer"):
        own = [name for name in names.list_candidates(side) if row.get(name) is not None]
        if len(own) > 1:
            raise DumpError(
                f"{where}: {' and '.join(own)} could both be {side}; set {_explain_naming(side)}"
            )
        found[side] = own[0] if own else None
    if found["train"] is found["infer"] is None:
        raise DumpError(
            f"{where}: missing a column of log-probabilities; found: {there}; {_EXPORTERS}; set "
            f"other names with {_explain_naming('train')}"
        )
    if found["train"] == found["infer"]:
        raise DumpError(f"{where}: {found['train']} cannot be both sides")
    return found


def _explain_naming(role: str) -> str:
    """The way to name a column, in Python and on the command line."""
    return f"FieldNames({role}=…) or --columns {role}=…"


@dataclass(frozen=True)
class _RowReader:
    """Reads one row; a column shorter than the ids covers the last ids."""

    where: str
    row: DumpRow
    names: FieldNames
    sides: Mapping[str, str | None]
    prompts: dict[str, int]

    def read_columns(self) -> TokenColumns:
        """Returns the row without padding."""
        ids = self._read_ids()
        named = [name for name in self.sides.values() if name is not None]
        columns = {name: self._read_numbers(name) for name in named}
        count = " and ".join(f"{name} has {columns[name].size} entries" for name in columns)
        spoken = max(column.size for column in columns.values())
        if any(column.size < spoken for column in columns.values()):
            raise self._build_error(f"{count}; both must cover the same tokens")
        if ids is None:
            total = spoken
        else:
            total = ids.size
        if spoken > total:
            raise self._build_error(f"{count} for {total} ids")
        train, infer = (
            _pad_front(np.zeros(0) if name is None else columns[name], total, math.nan)
            for name in self.sides.values()
        )
        real = self._find_real(total)
        mask = self._find_generated(train, infer, (np.arange(total) >= total - spoken) & real)
        for name, side in zip(self.sides.values(), (train, infer), strict=True):
            if name is not None:
                self._validate_logprobs(name, side[total - spoken :], mask[total - spoken :])
        real &= np.cumsum(mask[::-1])[::-1] > 0  # nothing after the last generated token
        train, infer, mask = (torch.from_numpy(one[real]) for one in (train, infer, mask))
        if ids is None:
            own = None
        else:
            own = torch.from_numpy(ids[real]).long()
        return TokenColumns(
            train, infer, mask, torch.tensor([0, int(real.sum())]), own, self._read_facts()
        )

    def _find_names(self, role: str) -> list[str]:
        """Names of the row's columns with a role."""
        return [name for name in self.names.list_candidates(role) if self.row.get(name) is not None]

    def _read_ids(self) -> Floats | None:
        used = list(filter(self._holds_numbers, self.names.list_candidates("ids")))[:1]
        if not used:
            prompt = list(filter(self._holds_numbers, KNOWN["prompt_ids"]))[:1]
            response = list(filter(self._holds_numbers, KNOWN["response_ids"]))[:1]
            if not prompt or not response:  # a response alone is not a whole sequence
                return None
            used = prompt + response
        ids = np.concatenate(list(map(self._read_numbers, used)))
        wrong = np.flatnonzero(~((ids >= 0) & (ids < _MOST_ID) & (ids == np.floor(ids))))
        if wrong.size:
            raise self._build_error(
                f"{' and '.join(used)}: {ids[wrong[0]]:g} at entry {wrong[0]} is not a token id"
            )
        return ids

    def _holds_numbers(self, name: str) -> bool:
        value = self.row.get(name)
        if isinstance(value, list | tuple):
            return not value or isinstance(value[0], int | float)
        return isinstance(value, Tensor | np.ndarray)

    def _find_real(self, total: int) -> Bools:
        """True for entries that are not padding, [T]."""
        real = np.ones(total, bool)
        for name in self._find_names("attention")[:1]:
            real &= self._read_flags(name, total, total)
        for name in self._find_names("prompt_attention")[:1]:
            prompt = self._read_numbers(name) != 0
            real[: prompt.size] &= prompt
        for name in self._find_names("length")[:1]:
            real &= np.arange(total) < self._read_number(name, 0, total)
        return real

    def _find_generated(self, train: Floats, infer: Floats, spoken: Bools) -> Bools:
        """True for the entries to compare, [T].

        Without a mask, these are the entries that both sides cover; they must not include context.
        """
        total = spoken.size
        if masks := self._find_names("mask"):
            if self._find_names("attention"):
                least = 0
            else:
                least = int(spoken.sum())
            return np.logical_and.reduce(
                [spoken, *(self._read_flags(name, total, least) for name in masks)]
            )
        if prompt := self._find_names("prompt_length"):
            return spoken & (np.arange(total) >= self._read_number(prompt[0], 0, total))
        name = self.sides["infer"] or self.sides["train"]
        zero = spoken & ((infer if self.sides["infer"] else train) == 0)
        if spoken.any():
            ends = np.flatnonzero(spoken)[[0, -1]]
        else:
            ends = []
        if zero[ends].any() or (zero & ~(np.abs(train) <= _CERTAIN)).any():
            raise self._build_error(
                f"missing mask, and {name} is exactly 0 at {zero.sum()} entries, the first "
                f"{np.argmax(zero)}: these may be a prompt, a tool's turn or a fault; set the "
                f"mask with {_explain_naming('mask')}"
            )
        return spoken

    def _read_facts(self) -> dict[RowFact, Tensor]:
        found: dict[RowFact, float] = {}
        for name in self._find_names("temperature")[:1]:
            found["temperature"] = self._read_number(name, 0.0, 1e6)
        for name in self._find_names("prompt")[:1]:
            found["prompt"] = float(self.prompts.setdefault(str(self.row[name]), len(self.prompts)))
        return {fact: torch.tensor([value], dtype=torch.float64) for fact, value in found.items()}

    def _validate_logprobs(self, name: str, side: Floats, mask: Bools) -> None:
        wrong = np.flatnonzero(mask & (np.isnan(side) | (side > LARGEST)))
        if wrong.size:
            raise self._build_error(
                f"{name} has {side[wrong[0]]:g} at entry {wrong[0]}; not a log-probability"
            )
        if mask.any() and (side[mask] > LARGEST / 10).all():
            raise self._build_error(
                f"{name} is above 0 at every entry; write log-probabilities, not probabilities"
            )

    def _read_flags(self, name: str, total: int, least: int) -> Bools:
        flags = self._read_numbers(name)
        if not np.isin(flags, (0, 1)).all():
            raise self._build_error(f"{name} has values other than 0 and 1")
        if not least <= flags.size <= total:
            raise self._build_error(
                f"{name} has {flags.size} entries for {least} log-probabilities and {total} tokens"
            )
        return _pad_front(flags, total, 0.0) == 1

    def _read_numbers(self, name: str) -> Floats:
        """A column of numbers, [T]; NaN for null."""
        value = self.row.get(name)
        try:
            column = np.array(
                value.double().numpy() if isinstance(value, Tensor) else value, np.float64
            )
        except (TypeError, ValueError, OverflowError):
            raise self._build_error(
                f"{name} is not a list of numbers; write one entry per token"
            ) from None
        if column.ndim != 1:
            raise self._build_error(
                f"{name} has shape {list(column.shape)}; expected one number per token"
            )
        return column

    def _read_number(self, name: str, least: float, most: float) -> float:
        value: Any = self.row[name]
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            raise self._build_error(f"{name} is {str(value)[:40]!r}; expected a number") from None
        if not least <= number <= most:
            raise self._build_error(
                f"{name} is {number:g}; expected a value from {least:g} to {most:g}"
            )
        return number

    def _build_error(self, what: str) -> DumpError:
        return DumpError(f"{self.where}: {what}")


def _pad_front(column: Floats, total: int, fill: float) -> Floats:
    """Pads the front of a column for entries that it does not cover."""
    return np.concatenate([np.full(total - column.size, fill), column])


def read_rows(path: Path, names: Collection[str]) -> Iterator[tuple[str, DumpRow]]:
    """Yields each row of a file, or of all files in a folder, with its location for error messages.

    Args:
        path: A file of a kind in `KINDS`, or a folder of such files.
        names: Columns to read; others may be left out.

    Raises:
        DumpError: A file cannot be read.
    """
    files = [path]
    if path.is_dir():
        files = sorted(one for one in path.iterdir() if _find_suffix(one) in _READERS)
    if not files:
        raise DumpError(f"{path}: no dump in this folder; write one of {KINDS}")
    for file in files:
        if not file.is_file():
            raise DumpError(f"{file}: no such file")
        if _find_suffix(file) not in _READERS:
            raise DumpError(f"{file}: cannot read this kind of file; use one of {KINDS}")
        try:
            yield from _READERS[_find_suffix(file)](file, names)
        except DumpError:
            raise
        except Exception as error:  # a malformed file may make its library raise anything
            reason = str(error).partition("\n")[0][:200] or type(error).__name__
            raise DumpError(f"{file}: cannot be read: {reason}") from error


def _find_suffix(path: Path) -> str:
    if path.suffix == ".gz":
        return path.with_suffix("").suffix
    return path.suffix


def _read_jsonl(path: Path, names: Collection[str]) -> Iterator[tuple[str, DumpRow]]:
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            where = f"{path}, line {number}"
            try:
                row: Any = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise DumpError(f"{where}: invalid JSON: {error}") from error
            yield where, _require_object(where, row)


def _require_object(where: str, row: Any) -> DumpRow:
    if not isinstance(row, dict):
        raise DumpError(f"{where}: expected a JSON object, got {type(row).__name__}")
    return row


def _read_safetensors(path: Path, names: Collection[str]) -> Iterator[tuple[str, DumpRow]]:
    with safe_open(path, "pt") as file:
        table = dict[str, Any]()
        for name, text in (file.metadata() or {}).items():
            if name in names:
                table[name] = float(text)
        for name in file.keys():  # noqa: SIM118, an open file, not a dict
            if name in names:
                table[name] = file.get_tensor(name)
    yield from _transpose_columns(path, table, names)


def _read_pt(path: Path, names: Collection[str]) -> Iterator[tuple[str, DumpRow]]:
    if not zipfile.is_zipfile(path):
        raise DumpError(f"{path}: not a file written by torch.save; write it again with torch.save")
    with safe_globals(_ARRAYS):
        if unsafe := get_unsafe_globals_in_checkpoint(str(path)):
            raise DumpError(
                f"{path}: contains {', '.join(sorted(unsafe))}, which would run code; {_ADVICE}"
            )
        content: object = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    match content:
        case {"samples": [*samples]}:  # slime's rollouts, and what it trains on
            return (
                (f"{path}, sample {number}", _require_object(str(path), one))
                for number, one in enumerate(samples)
            )
        case dict():
            return _transpose_columns(path, content, names)
        case _:
            raise DumpError(f"{path}: expected a dict of columns, got {type(content).__name__}")


def _transpose_columns(
    path: Path, table: Mapping[str, Any], names: Collection[str]
) -> Iterator[tuple[str, DumpRow]]:
    """Yields rows from columns; a value without one entry per row applies to all rows."""
    kept = {name: column for name, column in table.items() if name in names}
    shapes = {name: _read_nested_shape(column) for name, column in kept.items()}
    rows = {name: shape[0] for name, shape in shapes.items() if len(shape) == 2}
    if len(set(rows.values())) != 1:
        there = rows or "none of a known name"
        raise DumpError(
            f"{path}: needs columns with one row of tokens for each sequence; found: {there}"
        )
    count = next(iter(rows.values()))
    each = [name for name, shape in shapes.items() if shape and shape[0] == count]
    for number in range(count):
        yield f"{path}, row {number}", {**kept, **{name: kept[name][number] for name in each}}


def _read_nested_shape(column: Any) -> tuple[int, ...]:
    """The shape of an array or of nested lists; of ragged lists, the shape of the first."""
    if isinstance(column, Tensor | np.ndarray):
        return tuple(column.shape)
    if not isinstance(column, list | tuple):
        return ()
    return (len(column), *(_read_nested_shape(column[0]) if column else ()))


_READERS: Mapping[str, Callable[[Path, Collection[str]], Iterator[tuple[str, DumpRow]]]] = {
    ".jsonl": _read_jsonl,
    ".safetensors": _read_safetensors,
    ".pt": _read_pt,
}
KINDS = ", ".join(_READERS) + " and .jsonl.gz"
