"""Rows of Parquet files and of folders that the library `datasets` wrote, read through that library."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from lockstep.data import cache
from lockstep.data.cache import Stamp
from lockstep.data.notes import Ticker
from lockstep.data.rows import DataError, Part, Skipped

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
            f"{path}: Parquet and data set folders need the library `datasets`: pip install 'lockstep-rl[datasets]'"
        ) from None
    if path.is_dir():
        files = _files_of(path)
        if not files:
            raise DataError(f"{path}: holds no rows")
        return TableRows(datasets.Dataset.load_from_disk(str(path)), path, files, label)
    stamp = Stamp.of(path)
    if stamp is None:
        raise DataError(f"{path}: there is no such file; name a Parquet file that exists")
    # The library unpacks the file into one it can map into memory, once; the folder's name says from which file.
    unpacked = cache.folder() / cache.entry("parquet", stamp.path, stamp)
    try:
        rows = datasets.Dataset.from_parquet(str(path), cache_dir=str(unpacked))
    except (OSError, ValueError, DatasetGenerationError) as error:
        raise DataError(f"{path}: cannot be read as Parquet ({error.__cause__ or error}); write it again") from error
    return TableRows(rows, path, [path], label)


def _files_of(folder: Path) -> list[Path]:
    """The files that hold the rows of a folder that was written by `Dataset.save_to_disk`."""
    splits = folder / "dataset_dict.json"
    if splits.is_file():
        names = json.loads(splits.read_text(encoding="utf-8"))["splits"]
        raise DataError(f"{folder}: holds the splits {', '.join(names)}; name one of them, as in {folder / names[0]}")
    state = folder / "state.json"
    if not state.is_file():
        raise DataError(
            f"{folder}: is no folder that Dataset.save_to_disk wrote (no state.json); name its files one by one"
        )
    return [folder / file["filename"] for file in json.loads(state.read_text(encoding="utf-8"))["_data_files"]]


class TableRows:
    """The rows of a table with typed columns. A column without a value is None in its row.

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
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


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
