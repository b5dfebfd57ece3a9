"""The folder for data that Lockstep keeps between commands, outside of all runs."""

from __future__ import annotations

import functools
import os
import tempfile
from pathlib import Path

from lockstep.system.printable import note_once


def find_cache_folder() -> Path:
    """The cache folder: $LOCKSTEP_CACHE, or `lockstep` in the user's cache folder.

    If that is not writable, a temporary folder for this process.
    """
    chosen = os.environ.get("LOCKSTEP_CACHE")
    if not chosen:
        chosen = os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "lockstep")
    return _require_writable(os.path.expanduser(chosen))


@functools.cache
def _require_writable(chosen: str) -> Path:
    path = Path(chosen)
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return path
    except OSError as error:
        text = (
            f"the cache folder {path} cannot be written ({error.strerror}); nothing is cached for "
            "later commands"
        )
        note_once(text)
        return Path(_make_temporary().name)


@functools.cache
def _make_temporary() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="lockstep-")
