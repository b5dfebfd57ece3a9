"""Git LFS pointers: small files that stand for large ones in a clone without LFS."""

from __future__ import annotations

from pathlib import Path

MARK = b"version https://git-lfs.github.com/spec/"
"""First bytes of every pointer."""

_LONGEST = 1024  # bytes, by the specification


def is_pointer(file: Path) -> bool:
    """True if a file is only a pointer to its content."""
    if not file.is_file() or file.stat().st_size > _LONGEST:
        return False
    with file.open("rb") as content:
        return content.read(len(MARK)) == MARK
