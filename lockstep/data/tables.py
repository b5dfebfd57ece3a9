"""Rows of Parquet files and of folders that the library `datasets` wrote, read through that library."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.core.errors import first_line, install_command
from lockstep.data import cache
from lockstep.data.cache import Stamp
from lockstep.data.rows import DataError, Rows, without_padding
from lockstep.system.cache_folder import find_cache_folder

if TYPE_CHECKING:
    from datasets import Dataset


class TableRows(Rows):
    """The rows of a table with typed columns. A column without a value is None in its row, see `without_padding`.

    Args:
        path: A Parquet file, or a folder written by `Dataset.save_to_disk`.
        label: Begins the ids of rows; the file's name if None.

    Raises:
        DataError: It is neither, or the library is not installed.
    """

    def __init__(self, path: Path, label: str | None = None) -> None:
        super().__init__(path, label)
        dataset = _open(path)
        files = [Path(file["filename"]) for file in dataset.cache_files] if path.is_dir() else [path]
        self._dataset = dataset.with_format(None)
        self._stamps = {file: Stamp.of(file) for file in files}
        self.digest = hashlib.sha256(" ".join(map(_digest, files)).encode()).hexdigest()
        self._settle("error", 0, [])

    def __len__(self) -> int:
        return len(self._dataset)

    def rows(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        self._require_unchanged()
        columns: dict[str, list[Any]] = self._dataset[list(indices)]
        rows = (dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))
        return [without_padding(row) for row in rows]


def _open(path: Path) -> Dataset:
    try:
        from datasets import Dataset
    except ImportError:
        raise DataError(
            f"{path}: Parquet and data set folders need the library `datasets`; {install_command('datasets')}"
        ) from None
    # The library unpacks Parquet into a file that it can map into memory, once; the folder says from which file.
    unpacked = find_cache_folder() / cache.entry("parquet", str(path.resolve()), Stamp.of(path))
    try:
        if path.is_dir():
            return Dataset.load_from_disk(str(path), keep_in_memory=False)
        return Dataset.from_parquet(str(path), cache_dir=str(unpacked))
    except Exception as error:  # of `datasets`, pyarrow and all that they read
        raise DataError(
            f"{path}: cannot be read as Parquet or as a folder of a data set, or has no rows "
            f"({first_line(error.__cause__ or error)}); save it again, or name one split of it"
        ) from error


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
