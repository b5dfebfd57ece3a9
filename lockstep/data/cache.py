"""Cache of facts about data files, in the user's cache folder, so that each is computed once.

An entry is one file, written to a temporary name and renamed, so that no reader sees half of it. Its name is a hash of
all inputs, so an entry is never stale, only unused; any entry may be deleted at any time.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from lockstep.cache_folder import find_cache_folder
from lockstep.data.rows import DataError

_FORMAT = 2  # another number makes all older entries unused
_LENGTH_BYTES = 8
_NUMBER = np.dtype("<i8")

Write = Callable[[BinaryIO], None]


@dataclass(frozen=True)
class Stamp:
    """Size and times of a file, which show whether it has changed, without reading it."""

    path: str
    size: int
    modified_ns: int
    changed_ns: int
    inode: int

    @classmethod
    def of(cls, path: Path) -> Stamp | None:
        """The stamp of a file, by its real path; None where there is no file."""
        try:
            stat = path.stat()
        except OSError:
            return None
        return cls(str(path.resolve()), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)


@dataclass(frozen=True)
class Table:
    """An array of integers, memory-mapped, with facts about it.

    Attributes:
        numbers: int64 [rows, columns].
        about: Anything that JSON holds.
    """

    numbers: np.ndarray
    about: dict[str, Any]


def table(name: str, columns: int, fill: Callable[[BinaryIO], dict[str, Any]]) -> Table:
    """Returns the table `name`, after computing it if the cache does not have it.

    Args:
        name: Name from `entry`.
        columns: Numbers per row.
        fill: Writes the numbers row by row as little-endian int64 and returns `about`, so that a table may exceed the
            memory, and its length need not be known in advance.
    """

    def write(file: BinaryIO) -> None:
        about = json.dumps(fill(file)).encode()
        file.write(about + len(about).to_bytes(_LENGTH_BYTES, "little"))

    path = ensure_cached(name, write)
    try:
        return _table(path, columns)
    except ValueError:  # cut short by a full disk or a crash of the machine
        path.unlink(missing_ok=True)
        return _table(ensure_cached(name, write), columns)


def ensure_cached(name: str, write: Write) -> Path:
    """Returns the file `name` of the cache, after writing it if it is missing; older ones of its family are removed.

    Raises:
        DataError: The disk is full.
    """
    path = find_cache_folder() / name
    if path.is_file():
        return path
    try:
        _write(path, write)
    except OSError as error:
        raise DataError(
            f"{path}: cannot be written ({error}); set the environment variable LOCKSTEP_CACHE to a folder with room"
        ) from error
    family = path.name.split("-")[0]
    for other in path.parent.glob(f"{family}-*"):
        if other != path:
            other.unlink(missing_ok=True)
    return path


def entry(kind: str, family: object, *key: object) -> str:
    """Name of an entry. Only the newest of a family stays, such as all entries about the file at one path."""
    return f"{kind}/{_hash(family)}-{_hash((_FORMAT, *key))}"


def _write(path: Path, write: Write) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    aside, name = tempfile.mkstemp(prefix=".aside-", dir=path.parent)
    try:
        with os.fdopen(aside, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _table(path: Path, columns: int) -> Table:
    """Maps the table in a file; raises ValueError if the file is incomplete."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        if size < _LENGTH_BYTES:
            raise ValueError(f"{path} is cut short")
        file.seek(-_LENGTH_BYTES, os.SEEK_END)
        about_bytes = int.from_bytes(file.read(), "little")
        numbers_bytes = size - _LENGTH_BYTES - about_bytes
        if numbers_bytes < 0 or numbers_bytes % (columns * _NUMBER.itemsize):
            raise ValueError(f"{path} is cut short")
        file.seek(numbers_bytes)
        about = json.loads(file.read(about_bytes))
    if not numbers_bytes:  # an empty file cannot be mapped
        return Table(np.empty((0, columns), _NUMBER), about)
    shape = (numbers_bytes // (columns * _NUMBER.itemsize), columns)
    return Table(np.memmap(path, _NUMBER, "r", shape=shape), about)


def _hash(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:24]
