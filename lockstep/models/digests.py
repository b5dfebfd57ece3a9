"""Digests of model files."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterable
from pathlib import Path
from threading import Lock
from typing import BinaryIO

from lockstep.core.errors import InputError
from lockstep.data.cache import FileStamp, ensure_cached, name_entry

FULL = "sha256:"
"""Prefix of a large file's digest.

Older versions stored sixteen digits, from samples of the file.
"""

_SMALL_BYTES = 1 << 24
_SETTLED_NS = 10**9
"""Age after which a further change is visible in a file's times, which advance in ticks."""

_READING = Lock()


def model_files(folder: Path, name: str = "model") -> dict[str, str]:
    """A digest of each file of a model, by default of the initial one."""
    digests = dict[str, str]()
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.suffix != ".md" and not path.name.startswith("."):
            digests[f"{name}.{path.name}"] = digest_file(path)
    return digests


def digest_file(path: Path) -> str:
    """A digest of a file.

    The digest of a large file, of all its bytes, is computed once and cached by its path, size,
    times and inode, also for later commands.
    """
    if path.stat().st_size <= _SMALL_BYTES:
        return digest_files([path])
    stamp = FileStamp.from_path(path)
    if stamp is None or time.time_ns() - stamp.changed_ns < _SETTLED_NS:
        return _read_full(path)

    def write_digest(kept: BinaryIO) -> None:
        found = _read_full(path)
        if FileStamp.from_path(path) != stamp:
            raise InputError(f"{path.parent} changed while it was read; rerun the command")
        kept.write(found.encode())

    with _READING:  # else two threads would read it twice
        kept = ensure_cached(name_entry("digest", stamp), write_digest)
        text = kept.read_text(encoding="utf-8")
    if not re.fullmatch(f"{FULL}[0-9a-f]{{64}}", text):  # disk error
        kept.unlink()
        raise InputError(f"{kept} was modified and has been removed; rerun the command")
    return text


def digest_files(paths: Iterable[Path]) -> str:
    """Sixteen hexadecimal digits of the SHA-256 of files, including their names."""
    total = hashlib.sha256()
    for path in paths:
        total.update(path.name.encode() + b"\0")
        with path.open("rb") as file:
            hashlib.file_digest(file, lambda: total)  # weights may exceed the memory
    return total.hexdigest()[:16]


def _read_full(path: Path) -> str:
    with path.open("rb") as file:
        return FULL + hashlib.file_digest(file, "sha256").hexdigest()
