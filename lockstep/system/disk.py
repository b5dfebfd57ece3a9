"""Handling of disk errors: retry, report and skip, or raise with the file's name."""

from __future__ import annotations

import errno
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

from lockstep.system.fault_policy import RetryCounter

T = TypeVar("T")

_PASSING = {errno.EAGAIN, errno.EBUSY, errno.EINTR, errno.ENOTEMPTY, errno.ESTALE, errno.ETIMEDOUT}
"""Transient errors of network disks."""

_NO_FOLDER_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EISDIR}
"""Errors of file systems that cannot sync a folder, such as CIFS and many FUSE ones."""

_OF_USERS = {
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ELOOP,
}
_OF_USERS |= {errno.ENAMETOOLONG, errno.EEXIST, errno.ECONNREFUSED, errno.EADDRINUSE}
"""Errors caused by a name, a path or a permission."""


def retry_disk(action: Callable[[], T]) -> T:
    """Runs an action; retries after transient disk errors, with the waits of `fault_policy`.

    Raises:
        OSError: The error of the last attempt, or a permanent error.
    """
    attempts = RetryCounter("disk")
    while True:
        try:
            return action()
        except OSError as error:
            if not (is_transient(error) and attempts.wait_for_retry()):
                raise


def is_transient(error: OSError) -> bool:
    """True if the error is a transient one of a network disk or a connection."""
    return error.errno in _PASSING


def rename_path(source: Path, target: Path) -> None:
    """Renames a file or folder, even if a network disk reports a failure after renaming it."""
    try:
        retry_disk(lambda: source.rename(target))
    except FileNotFoundError:
        if not target.exists():
            raise


def is_user_error(error: OSError) -> bool:
    """True if the user's input caused the error; other errors are the machine's."""
    return error.errno is None or error.errno in _OF_USERS


@contextmanager
def name_disk_errors(path: Path) -> Iterator[None]:
    """Adds a file's name to disk errors that the block raises without one."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def sync_path(path: Path) -> None:
    """Returns when the file, or the folder's directory entries, is on the disk.

    If the disk cannot sync folders, a warning says so once.

    Raises:
        OSError: With the name of the file. Never retried: a disk that failed once may have dropped
            the bytes.
    """
    with name_disk_errors(path):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if not (path.is_dir() and error.errno in _NO_FOLDER_SYNC):
                raise
            warnings.warn(
                "this run's disk cannot sync folders, so a power failure may lose the newest file",
                stacklevel=2,
            )
        finally:
            os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Syncs everything in a folder, contents before the folder itself; see `sync_path`."""
    for path in sorted(folder.rglob("*"), reverse=True):
        sync_path(path)
    sync_path(folder)


def name_temporary_copy(path: Path) -> Path:
    """A unique name for a writer's temporary copy of a file, next to it."""
    return path.with_name(f".{path.name}-{uuid4().hex}")


def remove_copies(path: Path) -> None:
    """Removes copies of a file that killed writers left."""
    for copy in path.parent.glob(f".{path.name}-*"):
        copy.unlink(missing_ok=True)


def remove_tree(folder: Path, note: Callable[[str], object]) -> None:
    """Removes an unneeded folder; if the disk refuses, warns and leaves the rest."""
    try:
        retry_disk(lambda: shutil.rmtree(folder))
    except OSError as error:
        note(f"{folder} cannot be removed ({error.strerror}); it uses disk space until it is")
