"""Cache of facts about data files, in the user's cache folder, so that each is computed once.

An entry is one file, written under a temporary name and renamed, so that readers never see a
partial file. Its name is a hash of all inputs, so an entry is never stale, only unused; any entry
may be deleted at any time.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from lockstep.core.errors import InputError
from lockstep.system.cache_folder import find_cache_folder
from lockstep.system.disk import name_temporary_copy
from lockstep.system.whole_files import open_aside

_FORMAT = 4  # a new number makes all older entries unused


@dataclass(frozen=True)
class FileStamp:
    """Size and times of a file, to detect changes without reading it."""

    path: str
    size: int
    modified_ns: int
    changed_ns: int
    inode: int

    @classmethod
    def from_path(cls, path: Path) -> FileStamp | None:
        """The stamp of a file, by its real path; None if it is not a file."""
        try:
            stat = path.stat()
        except OSError:
            return None
        return cls(
            str(path.resolve()), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino
        )


@dataclass(frozen=True)
class CachedTable:
    """An array of integers and facts about it.

    Attributes:
        numbers: int64.
        about: Any JSON value.
    """

    numbers: np.ndarray
    about: dict[str, Any]


def load_or_compute(name: str, compute: Callable[[], CachedTable]) -> CachedTable:
    """Returns the table `name` (from `name_entry`); computes it if it is not cached."""
    path = find_cache_folder() / name
    if path.is_file():
        try:
            with path.open("rb") as file:
                return CachedTable(np.load(file), json.load(file))
        except (ValueError, EOFError):  # cut short by a full disk or a crash of the machine
            path.unlink(missing_ok=True)
    found = compute()

    def write_table(file: BinaryIO) -> None:
        np.save(file, found.numbers)
        file.write(json.dumps(found.about).encode())

    ensure_cached(name, write_table)
    return found


def ensure_cached(name: str, write: Callable[[BinaryIO], None]) -> Path:
    """Returns the cache file `name`; writes it if missing.

    Raises:
        InputError: The disk is full.
    """
    path = find_cache_folder() / name
    if path.is_file():
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open_aside(path, name_temporary_copy(path)) as file:
            write(file)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be written ({error}); set the environment variable LOCKSTEP_CACHE to "
            "a folder with free space"
        ) from error
    return path


def name_entry(kind: str, *key: object) -> str:
    """Name of an entry: its kind, and a hash of all its inputs."""
    return f"{kind}/{hashlib.sha256(repr((_FORMAT, *key)).encode()).hexdigest()[:24]}"
