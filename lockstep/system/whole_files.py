"""Atomic writes: after a crash, a file has either its old or its new content."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from lockstep.core.errors import InputError, RunError
from lockstep.system.disk import name_disk_errors, name_temporary_copy
from lockstep.system.records import refuse_other

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def write_whole(path: Path, contents: Iterable[bytes]) -> None:
    """Writes a file under a temporary name, syncs it, and renames it.

    Only one process at a time may write it.

    Raises:
        InputError: It cannot be written, or the path is not a file, such as a device.
        RunError: The disk is full.
    """
    if path.exists() and not path.is_file():
        raise InputError(f"{path} exists but is not a regular file; choose a different name")
    try:
        with open_aside(path, path.with_name(f".{path.name}-aside")) as file:
            file.writelines(contents)
    except OSError as error:
        kind = RunError if error.errno in _NO_ROOM else InputError
        why = error.strerror or str(error)
        raise kind(
            f"{path} cannot be written ({why}); free space, or choose a different path"
        ) from error


def write_changed(path: Path, content: bytes) -> None:
    """Writes a file, and its folder, that several processes may write; readers see no partial file.

    A file that already has this content is left unchanged, so that its readers are not disturbed.
    """
    if path.is_file() and path.read_bytes() == content:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with open_aside(path, name_temporary_copy(path)) as file:
        file.write(content)


@contextmanager
def open_aside(path: Path, aside: Path) -> Iterator[BinaryIO]:
    """Opens a temporary file `aside`; at the end of the block, syncs it and replaces `path`."""
    try:
        with name_disk_errors(path), aside.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def append_lines(path: Path, lines: bytes) -> None:
    """Appends lines in one write; after it returns, a kill of the process loses nothing.

    Raises:
        RunError: The disk is full; none of the lines is written.
        InputError: The path is not a file, such as a pipe.
    """
    refuse_other(path)
    with name_disk_errors(path), path.open("ab", buffering=0) as file:
        written = file.write(lines)
        if written != len(lines):
            file.truncate(file.tell() - written)
            raise RunError(
                f"disk full while writing {path}; free space, and rerun the command to resume"
            )
