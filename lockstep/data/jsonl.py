"""JSON rows: a JSONL file by byte offsets, or a file with one JSON list.

A row is returned exactly as it was written. Lines end only with a newline byte, so that jagged
rows, carriage returns, form feeds and Unicode line separators inside strings are harmless. Each row
is parsed separately: '007' stays '007' regardless of other rows.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import re
import zlib
from array import array
from collections.abc import Sequence
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from lockstep.data import cache
from lockstep.data.cache import CachedTable
from lockstep.data.rows import NUM_NAMED, BadRowPolicy, DataError, FileRows, without_padding
from lockstep.system import lfs
from lockstep.system.strict_json import StrictJsonError, refuse_constant, refuse_repeated_key

_START_BYTES = 1 << 10
_UTF8_MARK = b"\xef\xbb\xbf"
_DEEPEST = 100
_TOO_DEEP = f"is nested deeper than {_DEEPEST} levels"
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")


class JsonlIndex(FileRows):
    """The rows of a JSONL file, plain or gzipped.

    Every line is checked once, so that a broken line is found before training starts and `len` is
    exact; blank lines are skipped. The index is cached, so the same file opens instantly the next
    time. Rows are read from the file on each use; a gzipped file is unpacked into memory.

    Args:
        path: A UTF-8 file with one JSON object per line; gzipped if its name ends in `.gz`.
        bad_rows: Policy for a line that is not a JSON object.
        label: Prefix of row ids; the file's name if None.

    Raises:
        DataError: The file cannot be read, is not UTF-8, has no rows, or has a bad line and
            `bad_rows` is error.
    """

    unit = "line"

    def __init__(
        self, path: str | Path, bad_rows: BadRowPolicy = "error", label: str | None = None
    ) -> None:
        super().__init__(Path(path), label)
        found = cache.load_or_compute(cache.name_entry("index", self._stamp), self._scan_rows)
        self._require_unchanged()
        # for each row: offset of its line in the text, and number of the line
        self._numbers = found.numbers
        self.digest = found.about["digest"]
        self._apply_policy(bad_rows, found.about["bad"], found.about["faults"])

    def __len__(self) -> int:
        return len(self._numbers)

    def row_number(self, i: int) -> int:
        return int(self._numbers[i, 1])

    def read_rows(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        self._require_unchanged()
        found = []
        with self._open_text() as text:
            for offset, _ in self._numbers[list(indices)].tolist():
                text.seek(offset)
                found.append(without_padding(parse_row(text.readline())))
        return found

    def _open_text(self) -> BinaryIO:
        """Opens the file on each use: the index can be pickled, and threads share no offset."""
        if self.path.suffix != ".gz":
            return self.path.open("rb")
        return BytesIO(self._unpacked_bytes)

    @cached_property
    def _unpacked_bytes(self) -> bytes:
        """The content of a gzipped file."""
        try:
            return gzip.decompress(self.path.read_bytes())
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DataError(
                f"{self.path}: is a damaged gzip file ({error}); compress it again"
            ) from error

    def _scan_rows(self) -> CachedTable:
        """Finds each row's offset and line, the content's digest, and the number of bad lines."""
        digest = hashlib.sha256()
        numbers = array("q")
        bad = 0
        faults: list[tuple[int, str]] = []
        with self._open_text() as text:
            start = text.read(_START_BYTES)
            mark = _UTF8_MARK if start.startswith(_UTF8_MARK) else b""
            start = start.removeprefix(mark)
            if start.startswith(lfs.MARK):
                raise DataError(
                    f"{self.path}: is only a Git LFS pointer; `git lfs pull` downloads the file"
                )
            if re.match(rb"\[\s*[\n{]", start):
                raise DataError(
                    f"{self.path}: is a JSON list, not JSONL; rename it to end in .json"
                )
            digest.update(mark)
            offset = text.seek(len(mark))
            for number, line in enumerate(text, start=1):
                digest.update(line)
                fault = _find_fault(line)
                if fault is None:
                    numbers.extend((offset, number))
                elif fault:
                    bad += 1
                    faults += [(number, fault)] if bad <= NUM_NAMED else []
                offset += len(line)
        about = {"digest": digest.hexdigest(), "bad": bad, "faults": faults}
        return CachedTable(np.frombuffer(numbers, np.int64).reshape(-1, 2), about)


class JsonList(FileRows):
    """The rows of a file that is one JSON list of objects, read into memory.

    Args:
        path: The file.
        bad_rows: Policy for an item that is not an object.
        label: Prefix of row ids; the file's name if None.

    Raises:
        DataError: The file cannot be read, is not a list, or has a bad item and `bad_rows` is
            error.
    """

    unit = "item"

    def __init__(self, path: Path, bad_rows: BadRowPolicy, label: str | None = None) -> None:
        super().__init__(path, label)
        content = path.read_bytes()
        try:
            items = parse_any(content)
        except ValueError as error:
            raise DataError(
                f"{path}: {error}; use a file with a JSON list, or JSONL with a name ending in "
                ".jsonl"
            ) from error
        if not isinstance(items, list):
            raise DataError(
                f"{path}: is a JSON {json_type(items)}, not a list of objects; write [{{…}}, {{…}}]"
            )
        self.digest = hashlib.sha256(content).hexdigest()
        self._rows: list[tuple[int, dict[str, Any]]] = []
        faults: list[tuple[int, str]] = []
        for number, item in enumerate(items, start=1):
            if isinstance(item, dict):
                self._rows.append((number, item))
            else:
                faults.append((number, f"is a JSON {json_type(item)}, not an object {{...}}"))
        self._apply_policy(bad_rows, len(faults), faults[:NUM_NAMED])

    def __len__(self) -> int:
        return len(self._rows)

    def row_number(self, i: int) -> int:
        return self._rows[i][0]

    def read_rows(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        return [without_padding(self._rows[i][1]) for i in indices]


class AsWritten(float):
    """A number that keeps its spelling: 3.10 equals 3.1, and its text is 3.10."""

    text: str

    def __new__(cls, text: str) -> AsWritten:
        number = super().__new__(cls, text)
        if not math.isfinite(number):
            refuse_constant(text)
        number.text = text
        return number

    def __str__(self) -> str:
        return self.text

    def __getnewargs__(self) -> tuple[str]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return (self.text,)


def parse_row(line: bytes) -> dict[str, Any]:
    """Parses a line's JSON object. Integers are exact, other numbers are `AsWritten`.

    Raises:
        ValueError: The line is not a JSON object; the message describes it without its location.
    """
    row = parse_any(line)
    if not isinstance(row, dict):
        raise ValueError(f"is a JSON {json_type(row)}, not an object {{...}}")
    return row


def parse_any(text: bytes) -> Any:
    """Parses a JSON value of any type, with the checks of `parse_row`."""
    try:
        value = _DECODER.decode(text.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(
            f"byte {error.start + 1} ({text[error.start]:#04x}) is invalid UTF-8"
        ) from error
    except StrictJsonError as error:
        raise ValueError(str(error)) from error
    except json.JSONDecodeError as error:
        if text.strip() == b"{":
            raise ValueError(
                "is only the start of an object; write each object on one line"
            ) from error
        # Not `colno`, which counts from the last newline, and a list may have several.
        raise ValueError(f"is invalid JSON ({error.msg} at character {error.pos + 1})") from error
    except RecursionError as error:
        raise ValueError(f"is invalid JSON (it {_TOO_DEEP})") from error
    except ValueError as error:  # from `int`
        raise ValueError("is invalid JSON (a number has too many digits)") from error
    if text.count(b"[") + text.count(b"{") > _DEEPEST and _measure_depth(value) > _DEEPEST:
        raise ValueError(_TOO_DEEP)
    if _SURROGATE_ESCAPE.search(text):
        # an unpaired surrogate is legal JSON, but neither tokenizers nor UTF-8 accept it
        try:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(
                "escapes half a surrogate pair (as in \\ud83d alone), which is invalid text"
            ) from error
    return value


def _measure_depth(value: Any) -> int:
    """Nesting depth of arrays and objects."""
    depth = 0
    level = [value]
    while level := [item for item in level if isinstance(item, list | dict)]:
        depth += 1
        inner: list[Any] = []
        for item in level:
            inner.extend(item.values() if isinstance(item, dict) else item)
        level = inner
    return depth


def _parse_integer(text: str) -> int | AsWritten:
    """Parses an integer; -0 keeps its spelling, which an int would lose."""
    if text == "-0":
        return AsWritten(text)
    return int(text)


_DECODER = json.JSONDecoder(
    object_pairs_hook=refuse_repeated_key,
    parse_float=AsWritten,
    parse_int=_parse_integer,
    parse_constant=refuse_constant,
)


def json_type(value: object) -> str:
    """JSON's name for the type of a value."""
    if value is None:
        return "null"
    return {dict: "object", list: "array", str: "string", bool: "boolean"}.get(
        type(value), "number"
    )


def _find_fault(line: bytes) -> str | None:
    """Returns the error in a line: None if valid, "" if blank, else a sentence."""
    try:
        parse_row(line)
    except ValueError as error:
        if line.strip():
            return str(error)
        return ""
    return None
