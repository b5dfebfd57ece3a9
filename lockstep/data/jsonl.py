"""Rows of a JSONL file by number: only byte offsets are kept, and a row comes back exactly as it was written.

Lines end with a newline byte and nothing else, so that jagged rows, carriage returns, form feeds and Unicode line
separators inside strings are harmless. Each row is parsed by itself: '007' stays '007' regardless of other rows.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import math
import re
import zlib
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from lockstep import lfs
from lockstep.cache_folder import find_cache_folder
from lockstep.data import cache
from lockstep.data.cache import Stamp
from lockstep.data.notes import Ticker
from lockstep.data.rows import NUM_NAMED, DataError, Part, Policy, RowError, Skipped, is_error, without_padding
from lockstep.strict_json import StrictJsonError, refuse_constant, refuse_repeated_key

_BUFFER_BYTES = 1 << 22
_NUMBERS_AT_ONCE = 1 << 16
_UTF8_MARK = b"\xef\xbb\xbf"
_GZIP_MARK = b"\x1f\x8b"
_TABLES = (".csv", ".tsv", ".xls", ".xlsx")
_OTHER_FORMATS = tuple(
    (re.compile(begins, re.IGNORECASE), what)
    for begins, what in (
        (rb"\xff\xfe\x00\x00|\x00\x00\xfe\xff", ", line 1: the file is UTF-32; save it as UTF-8"),
        (rb"\xff\xfe|\xfe\xff|\{\x00|\x00\{", ", line 1: the file is UTF-16; save it as UTF-8"),
        (re.escape(lfs.MARK), ": is only a pointer of Git LFS to the file; `git lfs pull` fetches it"),
        (rb"\[\s*[\n{]", ": is one JSON list, not JSONL; give it a name that ends in .json"),
        (rb"\{\s*\n", ", line 1: an object goes over several lines; write each on one line"),
        (rb"\s*<(!doctype|html)", ": is a web page, not rows; download the file itself"),
        (rb"PAR1", ": is Parquet; give it a name that ends in .parquet"),
        (rb"ARROW1", ": is Arrow; save it as Parquet or JSONL"),
        (rb"\x28\xb5\x2f\xfd|BZh|\xfd7zXZ|PK\x03\x04", ": is packed, and not by gzip; unpack it, or pack it by gzip"),
    )
)
"""Beginnings of files that are no JSONL, and what is said of them behind the file's name."""
_DEEPEST = 100
_TOO_DEEP = f"is nested more than {_DEEPEST} deep"
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")


class JsonlIndex:
    """The rows of a JSONL file, which may be packed by gzip.

    Every line is checked once, so that a broken one is found before training starts and `len` is exact; blank lines are
    skipped. The index is cached, so the same file opens at once the next time. A packed file is unpacked into the
    cache. Rows are read from the file at each use.

    Args:
        path: A UTF-8 file with one JSON object per line; packed, if its name ends in `.gz`.
        bad_rows: Policy for a line that is not a JSON object.
        label: Begins the ids of rows; the file's name if None.

    Raises:
        DataError: The file cannot be read, is not UTF-8, has no rows, or has a bad line that is not to be skipped.
    """

    def __init__(self, path: str | Path, bad_rows: Policy = "error", label: str | None = None) -> None:
        self.path = Path(path)
        self._label = label or self.path.name
        stamp = Stamp.of(self.path)
        if stamp is None or not self.path.is_file():
            raise DataError(f"{self.path}: there is no such file; name a JSONL file that exists")
        self._stamp = stamp
        try:
            self._read_index(bad_rows)
        except DataError:
            (find_cache_folder() / self._unpacked).unlink(missing_ok=True)  # which may be large
            raise

    def _read_index(self, bad_rows: Policy) -> None:
        """Checks all lines, or takes what the cache has of them; raises DataError as the constructor."""
        stamp = self._stamp
        with self._text().open("rb") as text:
            found = cache.table(
                cache.entry("index", stamp.path, stamp), 2, partial(_scan, text, self.path, is_error(bad_rows))
            )
        self._check_unchanged()
        self._numbers = found.numbers  # of each row: where its line begins in the text, and which line it is
        self.digest: str = found.about["digest"]
        faults = found.about["faults"]
        if faults and is_error(bad_rows):
            raise _refusal(self.path, *faults[0])
        self.skipped = Skipped(found.about["bad"], tuple(f"{_where(self.path, *fault)}" for fault in faults))
        if not len(self):
            raise DataError(
                f"{self.path}: holds no rows ({self.skipped.count} bad lines); write one JSON object per line"
            )

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def parts(self) -> tuple[Part, ...]:
        """All rows in one."""
        return (Part(str(self.path), len(self)),)

    def line_number(self, i: int) -> int:
        """Line number of row `i` in the file, counted from 1."""
        return int(self._numbers[i, 1])

    def where(self, i: int) -> str:
        """Returns the name of row `i` in messages."""
        return _where(self.path, self.line_number(i))

    def id(self, i: int) -> str:
        """The file's name and the line."""
        return f"{self._label}:{self.line_number(i)}"

    def row(self, i: int) -> dict[str, Any]:
        """Row `i`, counted from 0, parsed from its line."""
        return self.rows([i])[0]

    def rows(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """The rows `indices`, in that order.

        Raises:
            RowError: One of them has a key twice, or is nested too deeply.
            DataError: The file is no longer the one that was indexed.
        """
        self._check_unchanged()
        found = []
        # Opened at each use: the index then has no handle, so it pickles, and threads and forks do not share a seek.
        with self._text().open("rb") as text:
            for offset, line in self._numbers[list(indices)].tolist():
                text.seek(offset)
                try:
                    found.append(without_padding(parse(text.readline())))
                except ValueError as error:
                    raise RowError(_where(self.path, line), str(error)) from error
        return found

    def _text(self) -> Path:
        """The file itself, or what a packed one holds."""
        if self.path.suffix != ".gz":
            return self.path
        return cache.ensure_cached(self._unpacked, partial(_unpack, self.path))

    @property
    def _unpacked(self) -> str:
        """Name in the cache for what a packed file holds."""
        return cache.entry("unpacked", self._stamp.path, self._stamp)

    def _check_unchanged(self) -> None:
        if Stamp.of(self.path) != self._stamp:
            raise DataError(f"{self.path}: has changed since it was indexed; start again with a file that stays")


class AsWritten(float):
    """A number that knows how it was written: 3.10 counts as 3.1, and as text it is 3.10."""

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


def parse(line: bytes) -> dict[str, Any]:
    """The JSON object of a line. Whole numbers are exact, others are `AsWritten`.

    Raises:
        ValueError: The line is no JSON object; the message says what it is, but not where.
    """
    row = parse_any(line)
    if not isinstance(row, dict):
        raise ValueError(f"is a JSON {json_type(row)}, not an object {{...}}")
    return row


def parse_any(text: bytes) -> Any:
    """The JSON value of a text, of any type, parsed and refused as by `parse`."""
    try:
        value = _DECODER.decode(text.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start + 1} ({text[error.start]:#04x}) is not UTF-8") from error
    except StrictJsonError as error:
        raise ValueError(str(error)) from error
    except json.JSONDecodeError as error:
        # Not `colno`, which counts from the last newline: that of a line, or any in a list.
        raise ValueError(f"is not JSON ({error.msg} at character {error.pos + 1})") from error
    except RecursionError as error:
        raise ValueError(f"is not JSON (it {_TOO_DEEP})") from error
    except ValueError as error:  # from `int`
        raise ValueError("is not JSON (it has a number of more digits than can be read)") from error
    if text.count(b"[") + text.count(b"{") > _DEEPEST and _depth(value) > _DEEPEST:
        raise ValueError(_TOO_DEEP)
    if _SURROGATE_ESCAPE.search(text):
        _check_encodable(value)
    return value


def _depth(value: Any) -> int:
    """Levels of arrays and objects."""
    depth, level = 0, [value]
    while level := [item for item in level if isinstance(item, list | dict)]:
        depth += 1
        level = [inner for item in level for inner in (item.values() if isinstance(item, dict) else item)]
    return depth


def _integer(text: str) -> int | AsWritten:
    """Parses a whole number; only -0 keeps its spelling, which an int would lose."""
    return AsWritten(text) if text == "-0" else int(text)


_DECODER = json.JSONDecoder(
    object_pairs_hook=refuse_repeated_key, parse_float=AsWritten, parse_int=_integer, parse_constant=refuse_constant
)


def json_type(value: object) -> str:
    """JSON's word for the type of a value."""
    if value is None:
        return "null"
    return {dict: "object", list: "array", str: "string", bool: "boolean"}.get(type(value), "number")


def _check_encodable(value: Any) -> None:
    """Refuses half a surrogate pair: legal JSON, but no tokenizer takes it and no UTF-8 file holds it."""
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError("escapes half a surrogate pair (as in \\ud83d alone), which is no text") from error


def _scan(text: BinaryIO, path: Path, stop: bool, file: BinaryIO) -> dict[str, Any]:
    """Writes offset and line of each row to `file`; returns the digest of the content, and how many lines are bad."""
    digest, numbers, bad, faults = hashlib.sha256(), array("q"), 0, []
    ticker = Ticker(f"indexing {path}", text.seek(0, io.SEEK_END))
    text.seek(0)

    def digest_block(block: memoryview) -> None:
        digest.update(block)
        ticker.at(text.tell())

    lines = io.BufferedReader(_Watched(text, digest_block), _BUFFER_BYTES)
    offset = _mark_bytes(lines.peek(len(_UTF8_MARK)), path)
    lines.read(offset)
    for number, line in enumerate(lines, start=1):
        fault = _fault(line)
        if fault is None:
            numbers.extend((offset, number))
        elif fault and stop:
            raise _refusal(path, number, fault)
        elif fault:
            bad += 1
            faults += [(number, fault)] if bad <= NUM_NAMED else []
        offset += len(line)
        if len(numbers) >= _NUMBERS_AT_ONCE:
            _flush(numbers, file)
    _flush(numbers, file)
    return {"digest": digest.hexdigest(), "bad": bad, "faults": faults}


class _Watched(io.RawIOBase):
    """A file that passes each block to `seen` as it is read."""

    def __init__(self, source: BinaryIO, seen: Callable[[memoryview], None]) -> None:
        self._source, self._seen = source, seen

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)
        size = self._source.readinto(view)  # pyright: ignore[reportAttributeAccessIssue]
        self._seen(view[:size])
        return size


def _fault(line: bytes) -> str | None:
    """Says what is wrong with a line: nothing (None), that it is blank (""), or a sentence.

    orjson is five times as fast as `parse`, and stricter, except that it accepts a repeated key. It cannot replace
    `parse`, because it rounds large whole numbers.
    """
    try:
        if isinstance(orjson.loads(line), dict):
            return None
    except orjson.JSONDecodeError:
        if not line.strip():
            return ""
    try:
        parse(line)
    except ValueError as error:
        return str(error)
    return None


def _flush(numbers: array[int], file: BinaryIO) -> None:
    file.write(numbers.tobytes())
    del numbers[:]


def _unpack(path: Path, file: BinaryIO) -> None:
    ticker = Ticker(f"unpacking {path}", path.stat().st_size)
    with path.open("rb") as packed, gzip.GzipFile(fileobj=packed) as text:
        if packed.read(len(_GZIP_MARK)) != _GZIP_MARK:
            raise DataError(f"{path}: is not packed by gzip; take .gz off its name, or pack it")
        packed.seek(0)
        try:
            while block := text.read(_BUFFER_BYTES):
                file.write(block)
                ticker.at(packed.tell())
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DataError(f"{path}: is not a whole gzip file ({error}); pack it again") from error


def _where(path: Path, line: int, what: str | None = None) -> str:
    return f"{path}, line {line}" + ("" if what is None else f": {what}")


def _refusal(path: Path, line: int, what: str) -> DataError:
    return DataError(f"{_where(path, line, what)}; correct the line, or set data.bad_rows=skip")


def _mark_bytes(start: bytes, path: Path) -> int:
    """The length of a UTF-8 byte-order mark, where the file starts with one; raises DataError for other formats."""
    for begins, what in _OTHER_FORMATS:
        if begins.match(start.removeprefix(_UTF8_MARK)):
            raise DataError(f"{path}{what}")
    if start.startswith(_GZIP_MARK):
        cure = " twice; unpack it once" if path.suffix == ".gz" else "; give it a name that ends in .gz"
        raise DataError(f"{path}: is packed by gzip{cure}")
    if path.suffix in _TABLES:
        raise DataError(f"{path}: tables as text are not read; save it as JSONL or Parquet (pandas does both)")
    if b"\r" in start and b"\n" not in start:
        raise DataError(f"{path}: its lines end in carriage returns alone; end them in newlines")
    return len(_UTF8_MARK) if start.startswith(_UTF8_MARK) else 0
