"""The protocol of rows by number, which every kind of data file implements, and the policy on bad rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, assert_never

from lockstep.errors import InputError

Policy = Literal["error", "skip"]
"""Policy for a row that cannot be used: stop, or skip it and count it."""

Row = Mapping[str, Any]

NUM_NAMED = 5
"""Number of skipped rows that are named; all are counted."""


def read_number(value: object) -> float | None:
    """Returns a value of a row as a finite float; None if it is no number, NaN, infinite or too large."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def without_padding(row: dict[str, Any]) -> dict[str, Any]:
    """Returns a row without keys that are null inside of nested objects.

    A column of a table has one type, so objects in it come back with null for each key that another row has. Where all
    kinds of files leave these out, the same rows give the same prompts. Fields of the row that are null, and null in
    lists, stay.
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
        return None if math.isfinite(value) else value
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next((found for item in inner if (found := find_not_finite(item)) is not None), None)


class DataError(InputError):
    """A file or row that cannot be used; the message says where, what, and what to do."""


class RowError(DataError):
    """One row that cannot be read, while the file around it can.

    Attributes:
        why: The fault of the row.
    """

    def __init__(self, where: str, why: str) -> None:
        super().__init__(f"{where}: {why}")
        self.why = why


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


class Rows(Protocol):
    """Rows that are read on demand."""

    def __len__(self) -> int:
        """Number of rows; those skipped are not among them."""
        ...

    def rows(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """The rows `indices`, counted from 0, in that order.

        Raises:
            RowError: One of them cannot be read.
            DataError: The data is no longer what it was when it was opened.
        """
        ...

    def where(self, i: int) -> str:
        """Returns the name of row `i` in messages."""
        ...

    def id(self, i: int) -> str:
        """Names row `i` over runs; no other row has this name."""
        ...

    @property
    def parts(self) -> tuple[Part, ...]:
        """The rows cut into parts, in their order; sizes add up to `len`."""
        ...

    @property
    def skipped(self) -> Skipped:
        """Lines that are no rows and were skipped."""
        ...

    @property
    def digest(self) -> str:
        """Fingerprint of the content, hexadecimal: other bytes, other digest, wherever the files lie."""
        ...


def is_error(policy: Policy | Literal["truncate"]) -> bool:
    """True if a row that cannot be used as it is ends the run."""
    match policy:
        case "error":
            return True
        case "skip" | "truncate":
            return False
        case _:
            assert_never(policy)
