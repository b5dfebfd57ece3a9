"""Rows by number, for every kind of data file, and the policy on bad rows."""

from __future__ import annotations

import math
import stat
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, assert_never

from lockstep.core.errors import InputError
from lockstep.data.cache import FileStamp

BadRowPolicy = Literal["error", "skip"]
"""Policy for an unusable row: stop, or skip and count it."""

DataRow = Mapping[str, Any]

NUM_NAMED = 5
"""Number of skipped rows to name; all are counted."""


def read_number(value: object) -> float | None:
    """Returns a value as a finite float; None if it is not a number, not finite or too large."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    if math.isfinite(number):
        return number
    return None


def without_padding(row: dict[str, Any]) -> dict[str, Any]:
    """Returns a row without null keys inside nested objects.

    A table's column has one type, so its objects come back with null for each key that other rows
    have. All kinds of files drop these, so that the same rows give the same prompts. Null fields of
    the row itself, and nulls in lists, stay.
    """
    return {name: _without_padding(value) for name, value in row.items()}


def _without_padding(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_padding(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return list(map(_without_padding, value))
    return value


def find_not_finite(value: object) -> float | None:
    """Returns a NaN or infinity at any depth of a value; None if there is none."""
    if isinstance(value, float):
        if math.isfinite(value):
            return None
        return value
    if isinstance(value, dict):
        inner = value.values()
    elif isinstance(value, list):
        inner = value
    else:
        inner = ()
    return next((found for item in inner if (found := find_not_finite(item)) is not None), None)


class DataError(InputError):
    """An unusable file or row; the message names it, the error, and a fix."""


@dataclass(frozen=True)
class SkippedRows:
    """Rows that were skipped.

    Attributes:
        count: Number of rows.
        first: One sentence for each of the first few: the row and its error.
    """

    count: int = 0
    first: tuple[str, ...] = ()

    def __add__(self, other: SkippedRows) -> SkippedRows:
        return SkippedRows(self.count + other.count, (self.first + other.first)[:NUM_NAMED])


@dataclass(frozen=True)
class RowsPart:
    """Consecutive rows that are shuffled separately.

    Attributes:
        name: Name for messages.
        size: Number of rows.
        weight: Relative frequency of its rows.
    """

    name: str
    size: int
    weight: float = 1.0


class FileRows(ABC):
    """Rows of a file, read on demand.

    Args:
        path: The file.
        label: Prefix of row ids; the file's name if None.

    Attributes:
        path: The file.
        unit: The file format's word for a row.
        skipped: Invalid lines that were skipped.
        digest: Hexadecimal digest of the content; it does not depend on the file's location.
        share: The part of the rows to use, ordered by the digests of their prompts.

    Raises:
        DataError: The path does not exist or is not a file.
    """

    unit = "row"
    digest: str
    share = (0.0, 1.0)

    def __init__(self, path: Path, label: str | None) -> None:
        self.path = path
        self._label = label or path.name
        self.skipped = SkippedRows()
        try:
            mode = path.stat().st_mode
        except FileNotFoundError:
            raise DataError(f"{path}: no such file; correct the path") from None
        except OSError as error:
            raise DataError(
                f"{path}: cannot be opened ({error.strerror}); use a different file"
            ) from error
        if not stat.S_ISREG(mode):
            raise DataError(
                f"{path}: is not a regular file, but rows are read more than once; use a regular "
                "file"
            )
        self._stamp = FileStamp.from_path(path)

    @abstractmethod
    def __len__(self) -> int:
        """Number of rows, without skipped ones."""

    @abstractmethod
    def read_rows(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """The rows `indices`, counted from 0, in that order.

        Raises:
            DataError: The data has changed since it was opened.
        """

    @property
    def name(self) -> str:
        """Name of all rows in messages."""
        return str(self.path)

    @property
    def parts(self) -> tuple[RowsPart, ...]:
        """The parts of the rows, in order; sizes add up to `len`."""
        return (RowsPart(self.name, len(self)),)

    def row_number(self, i: int) -> int:
        """Number of row `i` in its file, counted from 1."""
        return i + 1

    def name_row(self, i: int) -> str:
        """Returns the name of row `i` in messages."""
        return self._name_numbered(self.row_number(i))

    def row_id(self, i: int) -> str:
        """Id of row `i`, unique and the same in all runs."""
        return f"{self._label}:{self.row_number(i)}"

    def _name_numbered(self, number: int) -> str:
        return f"{self.path}, {self.unit} {number}"

    def _apply_policy(
        self, bad_rows: BadRowPolicy, bad: int, faults: Sequence[tuple[int, str]]
    ) -> None:
        """Applies the policy to bad rows, given their number and the errors of the first ones."""
        first = tuple(f"{self._name_numbered(number)}: {why}" for number, why in faults)
        if first and is_error(bad_rows):
            raise DataError(f"{first[0]}; {describe_remedy(faults[0][0] - 1, self.unit)}")
        self.skipped = SkippedRows(bad, first)
        if not len(self):
            raise DataError(f"{self.path}: has no valid rows ({bad} bad); use a file with rows")

    def _require_unchanged(self) -> None:
        if FileStamp.from_path(self.path) != self._stamp:
            raise DataError(
                f"{self.path}: changed while in use; start over with a file that does not change"
            )


def describe_remedy(i: int, unit: str = "row") -> str:
    """The remedy for bad row `i`; if it is the first row, others are probably bad, too."""
    return f"correct the {unit}" + (", or set data.bad_rows=skip" if i else "")


def is_error(policy: BadRowPolicy) -> bool:
    """True if an unusable row ends the run."""
    match policy:
        case "error":
            return True
        case "skip":
            return False
        case _:
            assert_never(policy)
