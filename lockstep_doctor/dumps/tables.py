"""The rows of a dump, one for each sequence, out of any file that frameworks write."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from torch import Tensor

from lockstep_doctor.dumps.errors import DumpError
from lockstep_doctor.dumps.pickles import read_tensor_batch, read_torch_file

Row = Mapping[str, Any]
"""Columns of one sequence by name: lists, tensors, numbers, strings."""

_ROWS_AT_ONCE = 64


def read_rows(path: Path, names: Collection[str]) -> Iterator[tuple[str, Row]]:
    """Yields each row of a file, or of all files in a folder, with the words that say where it is.

    Args:
        path: A file of a kind in `KINDS`, or a folder of some.
        names: Of the columns that matter; others may be left out.

    Raises:
        DumpError: It cannot be read.
    """
    if not path.is_dir():
        yield from _read_file(path, names)
        return
    files = sorted((one for one in path.iterdir() if _kind(one) in _READERS), key=_naturally)
    if not files:
        raise DumpError(f"{path}: has no dump in it; what is read is {KINDS}")
    for file in files:
        yield from _read_file(file, names)


def _read_file(path: Path, names: Collection[str]) -> Iterator[tuple[str, Row]]:
    if not path.is_file():
        raise DumpError(f"{path}: there is no such file")
    if _kind(path) not in _READERS:
        raise DumpError(f"{path}: no reader for this kind of file; what is read is {KINDS}")
    return _READERS[_kind(path)](path, names)


def _kind(path: Path) -> str:
    return path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix


def _naturally(path: Path) -> list[int | str]:
    """The order in which step 10 comes behind step 9."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path.name)]


def _read_jsonl(path: Path, names: Collection[str]) -> Iterator[tuple[str, Row]]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            lines = ((number, line) for number, line in enumerate(file, 1) if line.strip())
            yield from (_parse(f"{path}, line {number}", line) for number, line in lines)
    except (OSError, EOFError, zlib.error) as error:
        raise DumpError(f"{path}: cannot be read: {error}") from error


def _parse(where: str, line: bytes) -> tuple[str, Row]:
    try:
        return where, _row(where, json.loads(line))
    except DumpError:
        raise
    except (ValueError, RecursionError) as error:
        raise DumpError(f"{where}: is no JSON: {error}") from error


def _row(where: str, row: Any) -> Row:
    if not isinstance(row, dict):
        raise DumpError(f"{where}: is no row (a JSON object) but {type(row).__name__}")
    return row


def _read_parquet(path: Path, names: Collection[str]) -> Iterator[tuple[str, Row]]:
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise DumpError(f"{path}: reading Parquet needs pyarrow: pip install pyarrow") from error
    try:
        number = 0
        file = parquet.ParquetFile(path)
        columns = [name for name in file.schema_arrow.names if name in names] or None
        for batch in file.iter_batches(_ROWS_AT_ONCE, columns=columns):
            for row in batch.to_pylist():
                yield f"{path}, row {number}", row
                number += 1
    except (OSError, arrow.ArrowException) as error:
        raise DumpError(f"{path}: cannot be read: {error}") from error


def _read_safetensors(path: Path, names: Collection[str]) -> Iterator[tuple[str, Row]]:
    try:
        with safe_open(path, "pt") as file:
            told = {name: _number(text) for name, text in (file.metadata() or {}).items()}
            table = {name: file.get_tensor(name) for name in file.keys() if name in names}  # noqa: SIM118, it is no dict
    except (OSError, SafetensorError) as error:
        raise DumpError(f"{path}: cannot be read: {error}") from error
    for where, row in _transpose(path, table, names):
        yield where, {**told, **row}


def _number(text: str) -> float | str:
    """A value of the metadata: a number for each row alike, such as the temperature, or a text."""
    try:
        return float(text)
    except ValueError:
        return text


def _read_pt(path: Path, names: Collection[str]) -> Iterator[tuple[str, Row]]:
    content = read_torch_file(path)
    match content:
        case {"samples": [*samples]}:  # slime's rollouts, and what it trains on
            return ((f"{path}, sample {number}", _row(str(path), one)) for number, one in enumerate(samples))
        case {"rollout_data": dict(columns)}:  # slime, until it gathered the ranks
            return _transpose(path, columns, names)
        case dict():
            return _transpose(path, content, names)
        case _:
            raise DumpError(f"{path}: is no dict of columns but {type(content).__name__}")


def _read_pickle(path: Path, names: Collection[str]) -> Iterator[tuple[str, Row]]:
    return _transpose(path, read_tensor_batch(path), names)


def _transpose(path: Path, table: Mapping[str, Any], names: Collection[str]) -> Iterator[tuple[str, Row]]:
    """Rows of columns; what has no entry for each row is said of all of them alike."""
    lengths = {name: len(column) for name, column in table.items() if name in names and _has_tokens(column)}
    if len(set(lengths.values())) != 1:
        there = lengths or "none of a known name"
        raise DumpError(f"{path}: needs columns with one row of tokens for each sequence; there are {there}")
    rows = next(iter(lengths.values()))
    kept = {name: column for name, column in table.items() if name in names}
    columns = {name: column for name, column in kept.items() if _length(column) == rows}
    for number in range(rows):
        yield f"{path}, row {number}", {**kept, **{name: column[number] for name, column in columns.items()}}


def _length(column: Any) -> int | None:
    if isinstance(column, Tensor | np.ndarray):
        return len(column) if column.ndim else None
    return len(column) if isinstance(column, list | tuple) else None


def _has_tokens(column: Any) -> bool:
    """True for [B, T], and for a list of lists or of tensors [T]."""
    if isinstance(column, Tensor | np.ndarray):
        return column.ndim == 2
    return (
        isinstance(column, list | tuple) and bool(column) and isinstance(column[0], list | tuple | Tensor | np.ndarray)
    )


_READERS: Mapping[str, Callable[[Path, Collection[str]], Iterator[tuple[str, Row]]]] = {
    ".jsonl": _read_jsonl,
    ".parquet": _read_parquet,
    ".safetensors": _read_safetensors,
    ".pt": _read_pt,
    ".pth": _read_pt,
    ".pkl": _read_pickle,
}
KINDS = ", ".join(_READERS) + " and .jsonl.gz"
