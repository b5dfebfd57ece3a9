"""Digests of models' files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

_SMALL_BYTES = 1 << 24
_PARTS, _PART_BYTES = 64, 1 << 16


def model_files(folder: Path, name: str = "model") -> dict[str, str]:
    """A digest of each file of a model, by default the initial one."""
    return {f"{name}.{path.name}": _file(path) for path in sorted(folder.iterdir()) if _matters(path)}


def _matters(path: Path) -> bool:
    return path.is_file() and path.suffix != ".md" and not path.name.startswith(".")


def _file(path: Path) -> str:
    """A digest of a file; of a large one, of its size and of parts all over it, since reading it all is slow."""
    size = path.stat().st_size
    if size <= _SMALL_BYTES:
        return digest([path])
    total = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        for part in range(_PARTS):
            file.seek(part * (size - _PART_BYTES) // (_PARTS - 1))
            total.update(file.read(_PART_BYTES))
    return total.hexdigest()[:16]


def digest(paths: Iterable[Path]) -> str:
    """Sixteen hexadecimal digits of the SHA-256 of files, their names among it."""
    total = hashlib.sha256()
    for path in paths:
        total.update(path.name.encode() + b"\0")
        with path.open("rb") as file:
            hashlib.file_digest(file, lambda: total)  # weights may be larger than the memory
    return total.hexdigest()[:16]
