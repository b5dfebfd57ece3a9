"""Trust in Python files of model folders: nothing of a folder runs unless the user has named it. Imports nothing heavy.

Files are trusted by content, so a copy in a run's folder is trusted with its original, and one that was changed is not.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from lockstep.command_line import repeat_command
from lockstep.errors import InputError

VARIABLE = "LOCKSTEP_TRUSTED"
"""The environment variable by which child processes get the digests of trusted files."""


class UntrustedCode(InputError):
    """Python files of a model's folder would have to run, and the user has not allowed it."""

    @classmethod
    def of(cls, folder: Path, model_type: object, files: Sequence[Path]) -> UntrustedCode:
        """The error for these files of a folder."""
        allow = repeat_command("--trust", *files) or f"lockstep.trust({', '.join(repr(str(file)) for file in files)})"
        return cls(
            f"{folder} computes its model type {model_type!r} by Python code of its own, which is not run: "
            f"{', '.join(map(describe_file, files))}; if you have read it and trust it: {allow}"
        )


def trust(*files: str | os.PathLike[str]) -> None:
    """Allows this process, and those that it starts, to run Python files of model folders, as they are now.

    Args:
        files: Python files; only these run, of a model's folder or of a copy, and only while their content stays.

    Raises:
        InputError: One of them is no Python file.
    """
    for file in map(Path, files):
        if file.suffix != ".py" or not file.is_file():
            raise InputError(f"--trust {file}: there is no such Python file; overrides stand before --trust")
    digests = {*_digests(), *(digest_content(Path(file).read_bytes()) for file in files)}
    os.environ[VARIABLE] = ",".join(sorted(digests))


def is_trusted(content: bytes) -> bool:
    """True if a file of this content was named."""
    return digest_content(content) in _digests()


def describe_file(file: Path) -> str:
    """A file that holds code, by its absolute path and the digest of its content."""
    return f"{file.resolve()} (sha256 {digest_content(file.read_bytes())[:16]})"


def digest_content(content: bytes) -> str:
    """SHA-256, in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def _digests() -> set[str]:
    return set(filter(None, os.environ.get(VARIABLE, "").split(",")))
