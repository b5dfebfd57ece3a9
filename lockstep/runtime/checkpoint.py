"""Checkpoints that are whole or are not there: written aside, summed, renamed into place.

    step_000010/
      manifest.json    size and SHA-256 of every other file
      state.json       what the loop needs besides weights
      …                safetensors and JSON, by whoever holds weights

A folder gets its step's name only when all its bytes are on the disk, and loses it before it is deleted; so a kill at
any instant leaves every folder of such a name complete. What comes back is data: nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

_ASIDE = ".aside_"
_MANIFEST, _STATE = "manifest.json", "state.json"


class CheckpointError(OSError):
    """A checkpoint could not be written; those before it are as they were."""


class _DamagedError(Exception):
    """A checkpoint is not what was written; the message says in what."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose every byte has been checked.

    Attributes:
        folder: Where its files are.
        step: Steps done when it was saved.
        state: What `Checkpoints.save` was given.
    """

    folder: Path
    step: int
    state: dict[str, Any]


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one run; one process at a time may save.

    Attributes:
        folder: Where they live; it need not exist yet.
        keep: The newest so many are kept.
    """

    folder: Path
    keep: int

    def save(self, step: int, write: Callable[[Path], None], state: dict[str, Any]) -> None:
        """Adds a checkpoint, then removes those that are not kept.

        Args:
            step: Steps done.
            write: Writes safetensors and JSON files into the empty folder it is given, subfolders allowed.
            state: Of JSON's types.

        Raises:
            CheckpointError: If the disk is full or fails. Nothing of this checkpoint is left, and all others are whole.
            ValueError: If `write` writes something that is neither safetensors nor JSON, or takes a name of ours.
        """
        aside = self.folder / f"{_ASIDE}{_name(step)}"
        try:
            self._remove_aside()
            aside.mkdir(parents=True)
            write(aside)
            _seal(aside, step, state)
        except (OSError, SafetensorError) as error:
            shutil.rmtree(aside, ignore_errors=True)
            raise CheckpointError(self._failure(step, error)) from error
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        # A folder of this step, or of a later one, can only be one that `latest` refused.
        self._remove([path for found, path in self._found() if found >= step])
        aside.rename(self.folder / _name(step))
        _sync(self.folder)
        self._remove([path for _, path in self._found()[: -self.keep]])

    def latest(self) -> Checkpoint | None:
        """The newest checkpoint that is what was written; a damaged one is named in a warning and passed over."""
        for step, path in reversed(self._found()):
            try:
                return Checkpoint(path, step, _opened(path, step))
            except _DamagedError as damage:
                warnings.warn(f"checkpoint {path} is not used: {damage}; trying the one before it", stacklevel=2)
        return None

    def _found(self) -> list[tuple[int, Path]]:
        """Steps and folders, oldest first."""
        if not self.folder.is_dir():
            return []
        matches = [(re.fullmatch(r"step_(\d{6,})", path.name), path) for path in self.folder.iterdir()]
        return sorted((int(match[1]), path) for match, path in matches if match)

    def _remove(self, paths: list[Path]) -> None:
        """Takes their names away first, so that no half-deleted folder looks like a checkpoint."""
        for path in paths:
            shutil.rmtree(path.rename(self.folder / f"{_ASIDE}old_{path.name}"))

    def _remove_aside(self) -> None:
        for path in self.folder.glob(f"{_ASIDE}*"):
            shutil.rmtree(path)

    def _failure(self, step: int, error: Exception) -> str:
        found = self._found()
        whole = f"the newest before it is {found[-1][1].name}" if found else "there is none before it"
        return (
            f"cannot save the checkpoint of step {step} in {self.folder}: {error}; {whole}; "
            "where the disk is full, make room; the same command then goes on"
        )


def _name(step: int) -> str:
    return f"step_{step:06d}"


def _seal(folder: Path, step: int, state: dict[str, Any]) -> None:
    """Adds state and manifest, and returns when everything is on the disk."""
    files = _files(folder)
    for name in files:
        if name in (_MANIFEST, _STATE) or not name.endswith((".safetensors", ".json")):
            raise ValueError(f"a checkpoint holds safetensors and JSON under names of their own, but not {name!r}")
    (folder / _STATE).write_text(json.dumps(state, indent=1) + "\n")
    sums = {name: _sum(folder / name) for name in [*files, _STATE]}
    (folder / _MANIFEST).write_text(json.dumps({"step": step, "files": sums}, indent=1) + "\n")
    for path in sorted(folder.rglob("*"), reverse=True):  # what is in a folder before the folder
        _sync(path)
    _sync(folder)


def _opened(folder: Path, step: int) -> dict[str, Any]:
    """Compares every file with the manifest and returns the state.

    Raises:
        _DamagedError: With the name of the file that differs.
    """
    try:
        manifest = json.loads((folder / _MANIFEST).read_bytes())
        noted_step, sums = manifest["step"], dict(manifest["files"])
    except (OSError, ValueError, KeyError, TypeError):
        raise _DamagedError(f"its {_MANIFEST} is missing or cannot be read") from None
    found = set(_files(folder)) - {_MANIFEST}
    if noted_step != step:
        raise _DamagedError(f"its {_MANIFEST} is that of step {noted_step}")
    if found != set(sums):
        raise _DamagedError(f"files are missing or were added: {', '.join(sorted(found ^ set(sums)))}")
    for name, noted in sums.items():
        if _sum(folder / name) != noted:
            raise _DamagedError(f"{name} was truncated or altered")
    return json.loads((folder / _STATE).read_bytes())


def _files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())


def _sum(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return {"bytes": file.tell(), "sha256": digest.hexdigest()}


def _sync(path: Path) -> None:
    """Returns when the file, or the folder's list of names, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
