"""Rows of a JSONL file by number: only byte offsets stay in memory, and a row comes back exactly as it was written.

Lines end with a newline byte and nothing else, so that jagged rows, carriage returns, form feeds and Unicode line
separators inside strings are harmless. Each row is parsed by itself: '007' stays '007' whatever other rows hold.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

_BUFFER_BYTES = 1 << 22
_UTF8_MARK = b"\xef\xbb\xbf"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")


class DataError(ValueError):
    """A file or row that cannot be used; the message says where, what, and what to do."""


class JsonlIndex:
    """The rows of a JSONL file.

    Every line is parsed once here, so that a broken one is known before training starts and `len` is exact; blank
    lines are passed over. Rows are read again from the file whenever they are asked for.

    Args:
        path: A UTF-8 file with one JSON object per line.
        bad_lines: What a line that is not a JSON object is: an error, or skipped and counted.

    Raises:
        DataError: The file cannot be read, is not UTF-8, has no rows, or has a bad line that is not to be skipped.
    """

    def __init__(self, path: str | Path, bad_lines: Literal["error", "skip"] = "error") -> None:
        self.path = Path(path)
        self.skipped_lines: list[int] = []
        self._offsets = array("Q")
        self._line_numbers = array("Q")
        if not self.path.is_file():
            raise DataError(f"{self.path}: there is no such file; name a JSONL file that exists")
        self._size_bytes = self.path.stat().st_size
        self._scan(bad_lines)
        if not len(self):
            raise DataError(f"{self.path}: holds no rows ({self.skipped} bad lines); write one JSON object per line")

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def skipped(self) -> int:
        """How many bad lines were skipped."""
        return len(self.skipped_lines)

    def line_number(self, i: int) -> int:
        """The line of row `i` in the file, counted from 1."""
        return self._line_numbers[i]

    def where(self, i: int) -> str:
        """How messages name row `i`."""
        return _where(self.path, self.line_number(i))

    def row(self, i: int) -> dict[str, Any]:
        """Row `i`, counted from 0, parsed from its line."""
        return self.rows([i])[0]

    def rows(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """The rows `indices`, in that order.

        Raises:
            DataError: The file is no longer the one that was indexed.
        """
        found = []
        # Opened anew each time: the index then has no handle, so it pickles, and threads and forks do not share a seek.
        with self.path.open("rb") as file:
            if file.seek(0, 2) != self._size_bytes:
                raise DataError(f"{self.path}: has changed since it was indexed; start again with a file that stays")
            for i in indices:
                file.seek(self._offsets[i])
                found.append(_parse(file.readline(), self.where(i)))
        return found

    def _scan(self, bad_lines: Literal["error", "skip"]) -> None:
        with self.path.open("rb", buffering=_BUFFER_BYTES) as file:
            offset = _skip_mark(file.read(len(_UTF8_MARK)), self.path)
            file.seek(offset)
            for number, line in enumerate(file, start=1):
                if line.strip():
                    self._take(line, offset, number, bad_lines)
                offset += len(line)

    def _take(self, line: bytes, offset: int, number: int, bad_lines: Literal["error", "skip"]) -> None:
        try:
            _parse(line, _where(self.path, number))
        except DataError as error:
            if bad_lines == "error":
                raise DataError(f"{error}; correct the line, or set data.bad_lines=skip") from error
            self.skipped_lines.append(number)
            return
        self._offsets.append(offset)
        self._line_numbers.append(number)


def _where(path: Path, line_number: int) -> str:
    return f"{path}, line {line_number}"


def _skip_mark(start: bytes, path: Path) -> int:
    """The length of a UTF-8 byte-order mark, where the file starts with one, in bytes."""
    if start.startswith(_UTF16_MARKS):
        raise DataError(f"{path}, line 1: the file is UTF-16; save it as UTF-8")
    return len(_UTF8_MARK) if start == _UTF8_MARK else 0


def _parse(line: bytes, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: byte {error.start + 1} ({line[error.start]:#04x}) is not UTF-8") from error
    except (ValueError, RecursionError) as error:  # ValueError: no JSON, or a number of more digits than Python reads
        raise DataError(f"{where}: is not JSON ({error})") from error
    if not isinstance(row, dict):
        raise DataError(f"{where}: is a JSON {_json_type(row)}, not an object {{...}}")
    if _SURROGATE_ESCAPE.search(line):
        _check_encodable(row, where)
    return row


def _json_type(value: object) -> str:
    if value is None:
        return "null"
    return {list: "array", str: "string", bool: "boolean"}.get(type(value), "number")


def _check_encodable(row: dict[str, Any], where: str) -> None:
    """Half a surrogate pair is legal JSON but no text: no tokenizer takes it and no UTF-8 file holds it."""
    try:
        json.dumps(row, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: escapes half a surrogate pair (as in \\ud83d alone), which is no text") from error
