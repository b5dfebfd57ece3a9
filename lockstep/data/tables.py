"""Rows of Parquet files and of folders that the library `datasets` wrote, read through that library."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from lockstep.cache_folder import find_cache_folder
from lockstep.data import cache
from lockstep.data.cache import Stamp
from lockstep.data.jsonl import parse
from lockstep.data.notes import Ticker
from lockstep.data.rows import DataError, Part, Skipped, without_padding
from lockstep.errors import first_line, install_command

if TYPE_CHECKING:
    from datasets import Dataset

_BLOCK_BYTES = 1 << 22


def open_table(path: Path, label: str) -> TableRows:
    """Opens a Parquet file, or a folder written by `Dataset.save_to_disk`.

    Raises:
        DataError: It is missing or neither, or the library is not installed.
    """
    try:
        import datasets
        from datasets.exceptions import DatasetGenerationError
    except ImportError:
        raise DataError(
            f"{path}: Parquet and data set folders need the library `datasets`; {install_command('datasets')}"
        ) from None
    if path.is_dir():
        files = _files_of(path)
        if not files:
            raise DataError(f"{path}: holds no rows")
        try:
            dataset = datasets.Dataset.load_from_disk(str(path))
        except Exception as error:  # of `datasets`, pyarrow and all that they read
            raise DataError(f"{path}: cannot be read as a data set ({first_line(error)}); save it again") from error
        return TableRows(dataset, path, files, label)
    stamp = Stamp.of(path)
    if stamp is None:
        raise DataError(f"{path}: there is no such file; name a Parquet file that exists")
    # The library unpacks the file into one it can map into memory, once; the folder's name says from which file.
    unpacked = find_cache_folder() / cache.entry("parquet", stamp.path, stamp)
    try:
        rows = datasets.Dataset.from_parquet(str(path), cache_dir=str(unpacked))
    except (OSError, ValueError, DatasetGenerationError) as error:
        if _is_empty(path):  # which the library cannot read
            raise DataError(f"{path}: holds no rows") from error
        why = first_line(error.__cause__ or error)
        raise DataError(f"{path}: cannot be read as Parquet ({why}); write it again") from error
    return TableRows(rows, path, [path], label)


def _is_empty(path: Path) -> bool:
    """True for a whole Parquet file without rows."""
    from pyarrow import ArrowException, parquet

    try:
        return parquet.read_metadata(path).num_rows == 0
    except (ArrowException, OSError):
        return False


def _files_of(folder: Path) -> list[Path]:
    """The files that hold the rows of a folder that was written by `Dataset.save_to_disk`."""
    splits = folder / "dataset_dict.json"
    if splits.is_file():
        names = _read_list(splits, "splits")
        if not names:
            raise DataError(f"{splits}: names no splits; save the data set again")
        raise DataError(
            f"{folder}: holds the splits {', '.join(map(str, names))}; name one of them, as in {folder / str(names[0])}"
        )
    state = folder / "state.json"
    if not state.is_file():
        raise DataError(
            f"{folder}: is no folder that Dataset.save_to_disk wrote (no state.json); name its files one by one"
        )
    named = [file.get("filename") if isinstance(file, dict) else None for file in _read_list(state, "_data_files")]
    files = [folder / str(name) for name in named]
    missing = [file for file in files if not file.is_file()]
    if missing:
        raise DataError(f"{missing[0]}: there is no such file, and {state} names it; copy the folder again")
    return files


def _read_list(file: Path, key: str) -> list[Any]:
    """A list in a JSON object that `datasets` wrote; raises DataError where it is not there."""
    try:
        found = parse(file.read_bytes())
    except ValueError as error:
        raise DataError(f"{file}: {error}; save the data set again") from error
    if not isinstance(found.get(key), list):
        raise DataError(f"{file}: has no list {key!r}; save the data set again")
    return found[key]


class TableRows:
    """The rows of a table with typed columns. A column without a value is None in its row, see `without_padding`.

    Args:
        dataset: The rows.
        path: Path of the table.
        files: The files that hold them.
        label: Begins the ids of rows.
    """

    def __init__(self, dataset: Dataset, path: Path, files: Sequence[Path], label: str) -> None:
        self._dataset, self._path, self._label = dataset.with_format(None), path, label
        self._stamps = {file: Stamp.of(file) for file in files}
        self.skipped = Skipped()
        self.digest = hashlib.sha256(" ".join(map(_digest, files)).encode()).hexdigest()
        if not len(self):
            raise DataError(f"{path}: holds no rows")

    def __len__(self) -> int:
        return len(self._dataset)

    @property
    def parts(self) -> tuple[Part, ...]:
        """All rows in one."""
        return (Part(str(self._path), len(self)),)

    def where(self, i: int) -> str:
        """Returns the name of row `i` in messages; people count rows from 1."""
        return f"{self._path}, row {i + 1}"

    def id(self, i: int) -> str:
        """The name of file or folder, and the row."""
        return f"{self._label}:{i + 1}"

    def rows(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """The rows `indices`, in that order.

        Raises:
            DataError: A file is no longer the one that was opened.
        """
        for file, stamp in self._stamps.items():
            if Stamp.of(file) != stamp:
                raise DataError(f"{file}: has changed since it was opened; start again with a file that stays")
        columns: dict[str, list[Any]] = self._dataset[list(indices)]
        rows = (dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))
        return [without_padding(row) for row in rows]


def _digest(file: Path) -> str:
    """The SHA-256 of a file, which is kept in the cache."""
    stamp = Stamp.of(file)
    return cache.table(cache.entry("digest", str(file.resolve()), stamp), 1, partial(_hash_table, file)).about["digest"]


def _hash_table(path: Path, out: BinaryIO) -> dict[str, Any]:
    digest, done = hashlib.sha256(), 0
    ticker = Ticker(f"reading {path}", path.stat().st_size)
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            done += len(block)
            ticker.at(done)
    return {"digest": digest.hexdigest()}
