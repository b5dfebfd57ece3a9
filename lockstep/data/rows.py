"""Rows by number, as every kind of data file gives them, and the policy on bad rows."""

from __future__ import annotations

import math
import stat
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, assert_never

from lockstep.core.errors import InputError
from lockstep.data.cache import Stamp

Policy = Literal["error", "skip"]
"""Policy for a row that cannot be used: stop, or skip it and count it."""

Row = Mapping[str, Any]

NUM_NAMED = 5
"""Number of skipped rows that are named; all are counted."""


def read_number(value: object) -> float | None:
    """Returns a value of a row as a finite float; None if it is no number, NaN, infinite or too
    large.
    """
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
    """Returns a row without keys that are null inside of nested objects.

    A column of a table has one type, so objects in it come back with null for each key that another
    row has. Where all kinds of files leave these out, the same rows give the same prompts. Fields
    of the row that are null, and null in lists, stay.
    """
    return {name: _without_padding(value) for name, value in row.items()}


def _without_padding(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_padding(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [_without_padding(item) for item in value]
    return value


def find_not_finite(value: object) -> float | None:
    """Returns a NaN or infinity in a value of a row, at any depth; None if it has none."""
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
    """A file or row that cannot be used; the message says where, what, and what to do."""


@dataclass(frozen=True)
class Skipped:
    """Rows that were left out.

    Attributes:
        count: Number of rows.
        first: The first few, a sentence each: where, and what is wrong.
    """

    count: int = 0
    first: tuple[str, ...] = ()

    def __add__(self, other: Skipped) -> Skipped:
        return Skipped(self.count + other.count, (self.first + other.first)[:NUM_NAMED])


@dataclass(frozen=True)
class Part:
    """Consecutive rows that are shuffled on their own.

    Attributes:
        name: Name for messages.
        size: Number of rows.
        weight: How often its rows are used, relative to the other parts.
    """

    name: str
    size: int
    weight: float = 1.0


class Rows(ABC):
    """Rows of a file, read on demand.

    Args:
        path: The file.
        label: Begins the ids of rows; the file's name if None.

    Attributes:
        path: The file.
        unit: What the file calls a row.
        skipped: Lines that are no rows and were skipped.
        digest: Fingerprint of the content, hexadecimal: other bytes, other digest, wherever the
            files lie.

    Raises:
        DataError: The path does not exist, or it is not a file.
    """

    unit = "row"
    digest: str

    def __init__(self, path: Path, label: str | None) -> None:
        self.path = path
        self._label = label or path.name
        self.skipped = Skipped()
        try:
            mode = path.stat().st_mode
        except FileNotFoundError:
            raise DataError(f"{path}: there is no such file; name one that exists") from None
        except OSError as error:
            raise DataError(
                f"{path}: cannot be opened ({error.strerror}); name another file"
            ) from error
        if not stat.S_ISREG(mode):
            raise DataError(
                f"{path}: is not a file, and rows are read more than once; name a file of rows"
            )
        self._stamp = Stamp.of(path)

    @abstractmethod
    def __len__(self) -> int:
        """Number of rows; those skipped are not among them."""

    @abstractmethod
    def rows(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """The rows `indices`, counted from 0, in that order.

        Raises:
            DataError: The data is no longer what it was when it was opened.
        """

    @property
    def name(self) -> str:
        """Name of all rows in messages."""
        return str(self.path)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The rows cut into parts, in their order; sizes add up to `len`."""
        return (Part(self.name, len(self)),)

    def number(self, i: int) -> int:
        """Number of row `i` in its file; people count from 1."""
        return i + 1

    def where(self, i: int) -> str:
        """Returns the name of row `i` in messages."""
        return self._name(self.number(i))

    def id(self, i: int) -> str:
        """Names row `i` over runs; no other row has this name."""
        return f"{self._label}:{self.number(i)}"

    def _name(self, number: int) -> str:
        return f"{self.path}, {self.unit} {number}"

    def _settle(self, bad_rows: Policy, bad: int, faults: Sequence[tuple[int, str]]) -> None:
        """Applies the policy to bad rows, given by their number and the faults of the first
        ones.
        """
        first = tuple(f"{self._name(number)}: {why}" for number, why in faults)
        if first and is_error(bad_rows):
            raise DataError(f"{first[0]}; correct the {self.unit}, or set data.bad_rows=skip")
        self.skipped = Skipped(bad, first)
        if not len(self):
            raise DataError(
                f"{self.path}: holds no rows ({bad} bad ones); name a file that has some"
            )

    def _require_unchanged(self) -> None:
        if Stamp.of(self.path) != self._stamp:
            raise DataError(
                f"{self.path}: has changed since it was opened; start again with a file that stays"
            )


def is_error(policy: Policy) -> bool:
    """True if a row that cannot be used as it is ends the run."""
    match policy:
        case "error":
            return True
        case "skip":
            return False
        case _:
            assert_never(policy)
