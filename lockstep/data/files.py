"""Data files as rows: one or several, in any supported format."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from lockstep.data.jsonl import JsonlIndex, JsonList
from lockstep.data.rows import BadRowPolicy, DataError, FileRows, RowsPart, SkippedRows
from lockstep.data.tables import TableRows

_CONVERTED = {
    ".csv": "csv.DictReader(sys.stdin)",
    ".txt": '({"prompt": line.strip()} for line in sys.stdin if line.strip())',
}
"""Suffixes of files that are not read, with Python expressions that read their rows."""


@dataclass(frozen=True)
class FileGroup:
    """Files whose rows belong together.

    Attributes:
        paths: The files: JSONL (plain or gzipped), a JSON list, or Parquet; or folders of Parquet.
        weights: Relative frequency of each file's rows; None means that the files are concatenated.
        share: The part of the rows to use, ordered by the digests of their prompts.
    """

    paths: tuple[Path, ...]
    weights: tuple[float, ...] | None = None
    share: tuple[float, float] = (0.0, 1.0)


def open_rows(files: FileGroup, bad_rows: BadRowPolicy = "error") -> FileRows:
    """Opens files as rows.

    Args:
        files: The files.
        bad_rows: Policy for a JSONL line that is not a JSON object.

    Raises:
        DataError: A file cannot be read or is listed twice, or has a bad line and `bad_rows` is
            error.
    """
    labels = _label_files(files.paths)
    opened: list[FileRows] = []
    for path, label in zip(files.paths, labels, strict=True):
        shards = sorted(path.glob("*.parquet"))
        if shards:
            opened.append(JoinedRows([TableRows(s, f"{label}/{s.name}") for s in shards], None))
        elif path.suffix == ".parquet":
            opened.append(TableRows(path, label))
        elif path.suffix in _CONVERTED:
            raise DataError(
                f"{path}: {path.suffix} is not supported; convert it: python3 -c 'import csv, "
                f"json, sys; [print(json.dumps(row)) for row in {_CONVERTED[path.suffix]}]' "
                f"< {path} > rows.jsonl"
            )
        elif path.suffix == ".json":
            opened.append(JsonList(path, bad_rows, label))
        else:
            opened.append(JsonlIndex(path, bad_rows, label))
    rows = opened[0] if len(opened) == 1 else JoinedRows(opened, files.weights)
    rows.share = files.share
    return rows


def _label_files(paths: Sequence[Path]) -> list[str]:
    """Names of the files, each with enough parent folders to be unique."""
    found = [path.resolve() for path in paths]
    for path in found:
        if found.count(path) > 1:
            raise DataError(
                f"{path}: duplicate file; list it once, and set data.weights to use it more often"
            )
    named = [path.absolute() for path in paths]  # a Hub file links to a name of digits
    depth = 1
    labels = [path.name for path in named]
    while len(set(labels)) < len(labels):
        depth += 1
        labels = ["/".join(path.parts[-depth:]) for path in named]
    return labels


class JoinedRows(FileRows):
    """The rows of several files as one.

    Args:
        opened: Rows of each file.
        weights: Relative frequency of each file's rows; None means one long file.
    """

    def __init__(self, opened: Sequence[FileRows], weights: Sequence[float] | None) -> None:
        self._opened = list(opened)
        self._weights = weights
        self._starts = [0, *accumulate(map(len, opened))]
        self.skipped = sum((rows.skipped for rows in opened), SkippedRows())
        self.digest = hashlib.sha256(" ".join(rows.digest for rows in opened).encode()).hexdigest()

    def __len__(self) -> int:
        return self._starts[-1]

    @property
    def name(self) -> str:
        return ", ".join(rows.name for rows in self._opened)

    @property
    def parts(self) -> tuple[RowsPart, ...]:
        """One part per file if they have weights; else one part for all."""
        if self._weights is None:
            return super().parts
        pairs = zip(self._opened, self._weights, strict=True)
        return tuple(RowsPart(rows.name, len(rows), weight) for rows, weight in pairs)

    def name_row(self, i: int) -> str:
        k, own = self._locate_row(i)
        return self._opened[k].name_row(own)

    def row_id(self, i: int) -> str:
        k, own = self._locate_row(i)
        return self._opened[k].row_id(own)

    def read_rows(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """The rows `indices`, in that order; each file is read once."""
        located = list(map(self._locate_row, indices))
        found: dict[tuple[int, int], dict[str, Any]] = {}
        for k, rows in enumerate(self._opened):
            wanted = [pair for pair in located if pair[0] == k]
            if wanted:
                found |= zip(wanted, rows.read_rows([own for _, own in wanted]), strict=True)
        return [found[pair] for pair in located]

    def _locate_row(self, i: int) -> tuple[int, int]:
        """Returns the file of a row and its index there."""
        k = bisect_right(self._starts, i) - 1
        return k, i - self._starts[k]
