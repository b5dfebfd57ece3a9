"""Guarded imports: folders that may come from other users run only trusted code.

This holds for this process and its children. No `.pyc` file is read from such a folder, since one
that seems to belong to a trusted file may hold anything.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterable
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    FileFinder,
    SourceFileLoader,
    SourcelessFileLoader,
)
from pathlib import Path
from types import CodeType

from lockstep.core.errors import InputError

TRUSTED = "LOCKSTEP_TRUSTED"
"""Environment variable that passes the digests of trusted files to child processes."""

_GUARDED = "LOCKSTEP_GUARDED"
"""Environment variable that passes the guarded folders to child processes."""

_LATER = "LOCKSTEP_GUARDED_PATH"
"""Environment variable with guarded folders that a child process adds to its `sys.path`."""

_LOCKSTEP = str(Path(__file__).parents[2])


def digest_content(content: bytes) -> str:
    """SHA-256, in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def is_trusted(content: bytes) -> bool:
    """True if a file with this content may run."""
    return digest_content(content) in _read_digests()


def trust_content(contents: Iterable[bytes]) -> None:
    """Allows files with these contents to run."""
    digests = _read_digests() | set(map(digest_content, contents))
    os.environ[TRUSTED] = ",".join(sorted(digests))


def guard_folder(folder: Path) -> None:
    """Restricts imports from a folder to trusted files from now on.

    The folder that holds Lockstep itself is not guarded: a user who can write there can change
    Lockstep.
    """
    if str(folder) == _LOCKSTEP:
        return
    os.environ[_GUARDED] = json.dumps([*dict.fromkeys([*list_guarded(), str(folder)])])
    install_guards()


def list_guarded() -> list[str]:
    """The guarded folders."""
    return json.loads(os.environ.get(_GUARDED, "[]"))


def split_path() -> dict[str, str]:
    """The environment for a child's `sys.path`, which adds guarded folders after guarding them.

    Python itself would import from them earlier.
    """
    path = [entry or os.getcwd() for entry in sys.path]
    later = list(filter(is_guarded, path))
    free = os.pathsep.join(entry for entry in path if entry not in later)
    return {"PYTHONPATH": free, _LATER: json.dumps(later)}


def install_guards() -> None:
    """Guards the folders in this process."""
    if not list_guarded():
        return
    if _find_modules not in sys.path_hooks:
        sys.path_hooks.insert(0, _find_modules)
    sys.path[:0] = json.loads(os.environ.pop(_LATER, "[]"))
    for entry in list(sys.path_importer_cache):
        if is_guarded(entry):
            del sys.path_importer_cache[entry]


def is_guarded(entry: str) -> bool:
    """True if a path entry is guarded or lies in a guarded folder.

    A separate path entry that happens to lie in a guarded folder is not guarded.
    """
    forms = Path(os.path.abspath(entry)), Path(os.path.realpath(entry))
    for folder in list_guarded():
        others = {*sys.path, _LOCKSTEP} - {folder}
        nested = [other for other in others if Path(other).is_relative_to(folder)]
        for form in forms:
            if form.is_relative_to(folder) and not any(map(form.is_relative_to, nested)):
                return True
    return False


def find_loader(name: str, file: Path) -> SourceFileLoader | None:
    """The loader for a file in a guarded folder; None elsewhere."""
    if is_guarded(str(file.parent)):
        return _TrustedLoader(name, str(file))
    return None


class _TrustedLoader(SourceFileLoader):
    """Compiles exactly the bytes that were checked against the trusted digests."""

    def get_code(self, fullname: str) -> CodeType:
        content = self.get_data(self.path)
        if not is_trusted(content):
            raise _refuse_import(self.path)
        return self.source_to_code(content, self.path)


class _RefusingLoader(SourcelessFileLoader):
    """Refuses compiled code of any content."""

    def get_code(self, fullname: str) -> CodeType:
        raise _refuse_import(self.path)


def _find_modules(entry: str) -> FileFinder:
    """A path hook for guarded folders."""
    if not is_guarded(entry):
        raise ImportError
    compiled = [*EXTENSION_SUFFIXES, *BYTECODE_SUFFIXES]
    return FileFinder(entry, (_TrustedLoader, SOURCE_SUFFIXES), (_RefusingLoader, compiled))


def _refuse_import(path: str) -> InputError:
    """The error for a file that would be imported.

    It is not an ImportError, which the user's code may expect and ignore.
    """
    return InputError(
        f"{path} would be imported by a run's code, but this machine has not trained with it; if "
        f"you have read it and trust it, add --trust {path} to the command"
    )


def _read_digests() -> set[str]:
    return set(filter(None, os.environ.get(TRUSTED, "").split(",")))
