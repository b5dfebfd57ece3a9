"""Rows of a data file that a run uses, read and tokenized on demand: prompts, pairs and demonstrations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

from lockstep.data.rows import Row, Rows
from lockstep.data.selection import Selection

T = TypeVar("T")


class EncodedRows(ABC, Generic[T]):
    """Rows that a run uses.

    Attributes:
        selection: Their numbers, in the order of the data.
    """

    selection: Selection

    def __len__(self) -> int:
        return len(self.selection)

    def __getitem__(self, i: int) -> T:
        return self._read(self.selection.numbers([i]))[0]

    @property
    def digest(self) -> str:
        """Fingerprint of the data; see `Rows.digest`."""
        return self.selection.rows.digest

    def read(self, position: int, count: int, seed: int) -> list[T]:
        """The rows at `position` … `position + count − 1` of a run; see `data.order`."""
        return self._read(self.selection.at(position, count, seed))

    def read_first(self, limit: int | None = None) -> list[T]:
        """The rows in the order of the file, at most the first `limit`."""
        return self._read(self.selection.first(limit))

    @abstractmethod
    def _encode(self, rows: Rows, numbers: Sequence[int], contents: Sequence[Row]) -> list[T]:
        """Rows of these numbers, rendered and tokenized."""

    @abstractmethod
    def _complaint(self, item: T) -> str | None:
        """Says what is wrong with the length of a row; None if nothing is."""

    def _lengths(self, rows: Rows, numbers: Sequence[int], contents: Sequence[Row]) -> list[str | None]:
        """Complaints about the length of each row; see `Needs`."""
        return [self._complaint(item) for item in self._encode(rows, numbers, contents)]

    def _read(self, numbers: Sequence[int]) -> list[T]:
        rows = self.selection.rows
        return self._encode(rows, numbers, rows.rows(numbers))
