"""Trust in Python files that may come from others: they run only if the user has named them. Imports nothing heavy.

They are those of model folders, and those that a run's recipe names (`lockstep.config.known_code`).

Files are trusted by content, so a copy in a run's folder is trusted with its original, and one that was changed is not.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from lockstep.command_line import repeat_command
from lockstep.errors import InputError
from lockstep.guarded_imports import digest_content, trust_content


class UntrustedCode(InputError):
    """Python files of a model's folder would have to run, and the user has not allowed it."""

    @classmethod
    def of(cls, folder: Path, model_type: object, files: Sequence[Path]) -> UntrustedCode:
        """The error for these files of a folder."""
        return cls(
            f"{folder} computes its model type {model_type!r} by Python code of its own, which is not run: "
            f"{', '.join(map(describe_file, files))}; if you have read it and trust it: {describe_trust(files)}"
        )


def trust(*files: str | os.PathLike[str]) -> None:
    """Allows this process, and those that it starts, to run Python files that may come from others, as they are now.

    Args:
        files: Python files of a model's folder, or that a run's recipe names. They run while their content stays the
            same, and so do copies of them.

    Raises:
        InputError: One of them is no Python file.
    """
    for file in map(Path, files):
        if file.suffix != ".py" or not file.is_file():
            raise InputError(f"--trust {file}: there is no such Python file; overrides stand before --trust")
    trust_content(Path(file).read_bytes() for file in files)


def describe_file(file: Path) -> str:
    """A file that holds code, by its absolute path and the digest of its content."""
    return f"{file.resolve()} (sha256 {digest_content(file.read_bytes())[:16]})"


def describe_trust(files: Sequence[Path]) -> str:
    """The command that allows files, or, in another program, the call."""
    return repeat_command("--trust", *files) or f"lockstep.trust({', '.join(repr(str(file)) for file in files)})"
