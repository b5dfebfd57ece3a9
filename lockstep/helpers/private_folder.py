"""Temporary folders of hostile code, removed also where folders in them are nested deeper than Python can follow."""

from __future__ import annotations

import subprocess
import tempfile


def make_private_folder(prefix: str) -> tempfile.TemporaryDirectory[str]:
    """Makes a folder; `remove_private_folder` removes it."""
    return tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True)


def remove_private_folder(folder: tempfile.TemporaryDirectory[str]) -> None:
    """Removes a folder with all that is in it."""
    try:
        folder.cleanup()
    except RecursionError:
        subprocess.run(["rm", "-rf", "--", folder.name], check=False, stderr=subprocess.DEVNULL)
