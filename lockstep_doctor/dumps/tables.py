"""The rows of a dump, one for each sequence, out of any file that frameworks write.

No code of a file is run: tensors and plain containers are read, and nothing else.
"""

from __future__ import annotations

import gzip
import json
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

from lockstep_doctor.dumps.names import DumpError

Row = Mapping[str, Any]
"""Columns of one sequence by name: lists, tensors, numbers, strings."""

_REBUILD = {"_reconstruct": np.zeros(1).__reduce__()[0], "scalar": np.float64(0).__reduce__()[0]}
_ARRAYS: list[Any] = [
    np.ndarray,
    np.dtype,
    *(type(np.dtype(name)) for name in ("bool", "int8", "uint8", "int16", "int32", "int64", "float32", "float64")),
    *((one, f"numpy.{core}.multiarray.{name}") for name, one in _REBUILD.items() for core in ("core", "_core")),
]
"""Names that arrays and numbers of numpy are made of, in its first and second edition."""

_ADVICE = "write tensors, numbers, strings, lists and dicts alone: docs/guides/dumps.md has five lines for each library"


def read_rows(path: Path, names: Collection[str]) -> Iterator[tuple[str, Row]]:
    """Yields each row of a file, or of all files in a folder, with the words that say where it is.

    Args:
        path: A file of a kind in `KINDS`, or a folder of some.
        names: Of the columns that matter; others may be left out.

    Raises:
        DumpError: It cannot be read.
    """
    files = [path]
    if path.is_dir():
        files = sorted(one for one in path.iterdir() if _kind(one) in _READERS)
    if not files:
        raise DumpError(f"{path}: has no dump in it; what is read is {KINDS}")
    for file in files:
        if not file.is_file():
            raise DumpError(f"{file}: there is no such file")
        if _kind(file) not in _READERS:
            raise DumpError(f"{file}: no reader for this kind of file; what is read is {KINDS}")
        try:
            yield from _READERS[_kind(file)](file, names)
        except DumpError:
            raise
        except Exception as error:  # a file of another program may make its library raise any
            reason = str(error).partition("\n")[0][:200] or type(error).__name__
            raise DumpError(f"{file}: cannot be read: {reason}") from error


def _kind(path: Path) -> str:
    return path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix


def _read_jsonl(path: Path, names: Collection[str]) -> Iterator[tuple[str, Row]]:
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        for where, line in ((f"{path}, line {number}", line) for number, line in enumerate(file, 1) if line.strip()):
            try:
                row: Any = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise DumpError(f"{where}: is no JSON: {error}") from error
            yield where, _row(where, row)


def _row(where: str, row: Any) -> Row:
    if not isinstance(row, dict):
        raise DumpError(f"{where}: is no row (a JSON object) but {type(row).__name__}")
    return row


def _read_safetensors(path: Path, names: Collection[str]) -> Iterator[tuple[str, Row]]:
    with safe_open(path, "pt") as file:
        told = {name: float(text) for name, text in (file.metadata() or {}).items() if name in names}
        table = {name: file.get_tensor(name) for name in file.keys() if name in names}  # noqa: SIM118, it is no dict
    yield from _transpose(path, told | table, names)


def _read_pt(path: Path, names: Collection[str]) -> Iterator[tuple[str, Row]]:
    if not zipfile.is_zipfile(path):
        raise DumpError(f"{path}: is no file of torch.save (a zip file); write it again with torch.save")
    with safe_globals(_ARRAYS):
        if unsafe := get_unsafe_globals_in_checkpoint(str(path)):
            raise DumpError(f"{path}: holds {', '.join(sorted(unsafe))}, which only running code could read; {_ADVICE}")
        content: object = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    match content:
        case {"samples": [*samples]}:  # slime's rollouts, and what it trains on
            return ((f"{path}, sample {number}", _row(str(path), one)) for number, one in enumerate(samples))
        case dict():
            return _transpose(path, content, names)
        case _:
            raise DumpError(f"{path}: is no dict of columns but {type(content).__name__}")


def _transpose(path: Path, table: Mapping[str, Any], names: Collection[str]) -> Iterator[tuple[str, Row]]:
    """Rows of columns; what has no entry for each row is said of all of them alike."""
    kept = {name: column for name, column in table.items() if name in names}
    shapes = {name: _shape(column) for name, column in kept.items()}
    rows = {name: shape[0] for name, shape in shapes.items() if len(shape) == 2}
    if len(set(rows.values())) != 1:
        there = rows or "none of a known name"
        raise DumpError(f"{path}: needs columns with one row of tokens for each sequence; there are {there}")
    count = next(iter(rows.values()))
    each = [name for name, shape in shapes.items() if shape and shape[0] == count]
    for number in range(count):
        yield f"{path}, row {number}", {**kept, **{name: kept[name][number] for name in each}}


def _shape(column: Any) -> tuple[int, ...]:
    """The sizes of an array or of lists in it; of lists of several lengths that of the first."""
    if isinstance(column, Tensor | np.ndarray):
        return tuple(column.shape)
    if not isinstance(column, list | tuple):
        return ()
    return (len(column), *(_shape(column[0]) if column else ()))


_READERS: Mapping[str, Callable[[Path, Collection[str]], Iterator[tuple[str, Row]]]] = {
    ".jsonl": _read_jsonl,
    ".safetensors": _read_safetensors,
    ".pt": _read_pt,
}
KINDS = ", ".join(_READERS) + " and .jsonl.gz"
