"""Rows of Parquet files."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.core.errors import first_line, install_command
from lockstep.data.rows import DataError, FileRows, without_padding

if TYPE_CHECKING:
    from pyarrow import Table


class TableRows(FileRows):
    """The rows of a Parquet file, read into memory.

    A column without a value is None in its row, see `without_padding`.

    Args:
        path: The file.
        label: Prefix of row ids; the file's name if None.

    Raises:
        DataError: The file cannot be read, or the library is not installed.
    """

    def __init__(self, path: Path, label: str | None = None) -> None:
        super().__init__(path, label)
        try:
            from pyarrow import parquet
        except ImportError:
            raise DataError(
                f"{path}: Parquet requires `pyarrow`; {install_command('datasets')}"
            ) from None
        try:
            self._table: Table = parquet.read_table(path)
        except Exception as error:  # from pyarrow and the libraries it uses
            raise DataError(
                f"{path}: invalid Parquet ({first_line(error)}); save it again"
            ) from error
        with path.open("rb") as file:
            self.digest = hashlib.file_digest(file, "sha256").hexdigest()
        self._apply_policy("error", 0, [])

    def __len__(self) -> int:
        return self._table.num_rows

    def read_rows(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        self._require_unchanged()
        return list(map(without_padding, self._table.take(list(indices)).to_pylist()))
