"""Rows of a file that is one JSON list of objects; it is read into memory as a whole."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lockstep.data.jsonl import json_type, parse_any
from lockstep.data.rows import NUM_NAMED, DataError, Part, Policy, Skipped, is_error, without_padding


class JsonList:
    """Implements `Rows`.

    Args:
        path: The file.
        bad_rows: Policy for an item that is no object.
        label: Begins the ids of rows.

    Raises:
        DataError: The file cannot be read, is no list, or has such an item that is not to be skipped.
    """

    def __init__(self, path: Path, bad_rows: Policy, label: str) -> None:
        self._path, self._label = path, label
        try:
            content = path.read_bytes()
            items = parse_any(content)
        except (OSError, ValueError) as error:
            raise DataError(
                f"{path}: {error}; name a file with a JSON list, or one of JSONL that ends in .jsonl"
            ) from error
        if not isinstance(items, list):
            raise DataError(f"{path}: is a JSON {json_type(items)}, not a list of objects; write [{{…}}, {{…}}]")
        self.digest = hashlib.sha256(content).hexdigest()
        self._rows = [(number, item) for number, item in enumerate(items, start=1) if isinstance(item, dict)]
        faults = [
            f"{self._at(number)}: is a JSON {json_type(item)}, not an object {{...}}"
            for number, item in enumerate(items, start=1)
            if not isinstance(item, dict)
        ]
        if faults and is_error(bad_rows):
            raise DataError(f"{faults[0]}; correct the item, or set data.bad_rows=skip")
        self.skipped = Skipped(len(faults), tuple(faults[:NUM_NAMED]))
        if not self._rows:
            raise DataError(f"{path}: holds no rows")

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def parts(self) -> tuple[Part, ...]:
        """All rows in one."""
        return (Part(str(self._path), len(self)),)

    def where(self, i: int) -> str:
        """Returns the name of row `i` in messages; people count items from 1."""
        return self._at(self._rows[i][0])

    def id(self, i: int) -> str:
        """The file's name and the item."""
        return f"{self._label}:{self._rows[i][0]}"

    def rows(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """The rows `indices`, in that order."""
        return [without_padding(self._rows[i][1]) for i in indices]

    def _at(self, number: int) -> str:
        return f"{self._path}, item {number}"
