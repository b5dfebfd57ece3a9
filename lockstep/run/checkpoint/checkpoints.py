"""Atomic checkpoints: written to a temporary folder, checksummed, renamed into place.

    step_000010/
      manifest.json    the loop's state; size and SHA-256 of each file and of itself
      …                safetensors and JSON of each learner

A folder gets its step's name only when all its bytes are on the disk, and loses it before it is
deleted; so after a kill at any instant, every folder with such a name is complete. Reading a
checkpoint unpickles nothing.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import uuid
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lockstep.core.errors import InputError, RunError
from lockstep.system.disk import (
    name_disk_errors,
    remove_tree,
    rename_path,
    retry_disk,
    sync_path,
    sync_tree,
)
from lockstep.system.sums import FileDigest, read_sum

_ASIDE = ".aside_"
_MANIFEST = "manifest.json"


class CheckpointError(RunError, OSError):
    """A checkpoint could not be written; earlier ones are unchanged."""


class NoCheckpointError(InputError, CheckpointError):
    """The requested checkpoint does not exist or is incomplete."""


class _DamagedError(Exception):
    """A checkpoint differs from its manifest; the message names the file."""


@dataclass(frozen=True)
class VerifiedCheckpoint:
    """A checkpoint with every byte verified.

    Attributes:
        folder: Folder of its files.
        step: Number of finished steps when it was saved.
        state: The state passed to `CheckpointStore.seal_checkpoint`.
    """

    folder: Path
    step: int
    state: dict[str, Any]


@dataclass(frozen=True)
class CheckpointStore:
    """The checkpoints of one run; only one process at a time may save.

    Attributes:
        folder: Their folder, which need not exist yet.
        keep: Number of newest checkpoints to keep.
        best: Number of checkpoints with the highest `score` to keep as well.
        note: Called with a sentence for each folder that cannot be removed and each damaged
            checkpoint.
    """

    folder: Path
    keep: int
    best: int = 0
    note: Callable[[str], object] = warnings.warn

    def remove_partial(self) -> None:
        """Removes half-written and half-removed checkpoints that a killed process left."""
        for path in self.folder.glob(f"{_ASIDE}*"):
            remove_tree(path, self.note)

    def begin_checkpoint(self, step: int) -> Path:
        """Creates an empty temporary folder for a checkpoint's safetensors and JSON files.

        Subfolders are allowed.

        Raises:
            CheckpointError: See `seal_checkpoint`.
        """
        try:
            self.remove_partial()
            staging = self._build_temporary_path(_name_folder(step))
            staging.mkdir(parents=True)
        except OSError as error:
            raise self.build_save_error(step, error) from error
        return staging

    def seal_checkpoint(
        self, staging: Path, step: int, state: dict[str, Any], score: float | None = None
    ) -> None:
        """Turns the temporary folder into a checkpoint, then removes surplus checkpoints.

        Args:
            staging: The temporary folder.
            step: Number of finished steps.
            state: JSON types only.
            score: Score of the policy, higher is better; None if unknown at this step.

        Raises:
            CheckpointError: The disk is full or fails. This checkpoint is removed; all others are
                unchanged.
            ValueError: There are files that are neither safetensors nor JSON, or that have a
                reserved name.
        """
        try:
            _write_manifest(staging, {"step": step, "score": score, "state": state})
            # A folder for this or a later step can only be one that `read_latest` refused.
            self._remove_folders([path for found, path in self.list_checkpoints() if found >= step])
            rename_path(staging, self.folder / _name_folder(step))
            sync_path(self.folder)
            best: list[Path] = []
            if self.best:
                best = [path for _, _, path in self.rank_by_score()[-self.best :]]
            older = self.list_checkpoints()[: -self.keep]
            self._remove_folders([path for _, path in older if path not in best])
        except OSError as error:
            raise self.build_save_error(step, error, staging) from error
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)
            raise

    def build_save_error(
        self, step: int, error: Exception, staging: Path | None = None
    ) -> CheckpointError:
        """The error for a checkpoint that could not be written; removes its folder, if any."""
        if staging is not None:
            shutil.rmtree(staging, ignore_errors=True)
        checkpoints = self.list_checkpoints()
        if checkpoints:
            fallback = f"the newest checkpoint is {checkpoints[-1][1].name}"
        else:
            fallback = "no earlier checkpoint exists"
        return CheckpointError(
            f"cannot save the checkpoint of step {step} in {self.folder}: {error}; {fallback}; if "
            "the disk is full, free space; rerun the command to resume"
        )

    def read_latest(self) -> VerifiedCheckpoint | None:
        """The newest undamaged checkpoint; None if none was ever saved.

        Raises:
            CheckpointError: There are checkpoints, but all are damaged.
        """
        checkpoints = self.list_checkpoints()
        for step, path in reversed(checkpoints):
            try:
                return VerifiedCheckpoint(path, step, _read_verified(path, step))
            except _DamagedError as damage:
                self.note(f"checkpoint {path} is skipped: {damage}")
        if checkpoints:
            raise CheckpointError(
                f"every checkpoint in {self.folder} is damaged; restore one, or remove the run "
                "folder to start over"
            )
        return None

    def newest_unverified(self) -> VerifiedCheckpoint | None:
        """The newest checkpoint and its recorded state, unverified; None without checkpoints."""
        checkpoints = self.list_checkpoints()
        if not checkpoints:
            return None
        step, path = checkpoints[-1]
        return VerifiedCheckpoint(path, step, _read_manifest(path).get("state", {}))

    def read_step(self, step: int) -> VerifiedCheckpoint:
        """The checkpoint of a step.

        Raises:
            NoCheckpointError: It does not exist or is damaged.
        """
        folder = self.folder / _name_folder(step)
        try:
            return VerifiedCheckpoint(folder, step, _read_verified(folder, step))
        except _DamagedError as damage:
            have = ", ".join(str(step) for step, _ in self.list_checkpoints()) or "none"
            raise NoCheckpointError(
                f"no valid checkpoint of step {step} in {self.folder}: {damage}; available: {have}"
            ) from None

    def list_checkpoints(self) -> list[tuple[int, Path]]:
        """Lists steps and folders, oldest first, without reading them."""
        if not self.folder.is_dir():
            return []
        found: list[tuple[int, Path]] = []
        for path in self.folder.iterdir():
            match = re.fullmatch(r"step_(\d{6,})", path.name)
            if match:
                found.append((int(match[1]), path))
        return sorted(found)

    def rank_by_score(self) -> list[tuple[float, int, Path]]:
        """Score, step and folder of scored checkpoints, best last; older ones win ties."""
        scored: list[tuple[float, int, Path]] = []
        for step, path in self.list_checkpoints():
            score = _read_manifest(path).get("score")
            if isinstance(score, int | float):
                scored.append((score, step, path))
        return sorted(scored, key=lambda entry: (entry[0], -entry[1]))

    def _build_temporary_path(self, name: str) -> Path:
        """A new path for a temporary folder; leftovers of earlier ones may exist."""
        return self.folder / f"{_ASIDE}{name}_{uuid.uuid4().hex[:12]}"

    def _remove_folders(self, paths: list[Path]) -> None:
        """Removes folders, each renamed first, so that no partial one looks like a checkpoint."""
        for path in paths:
            temporary = self._build_temporary_path(f"old_{path.name}")
            rename_path(path, temporary)
            remove_tree(temporary, self.note)


def _name_folder(step: int) -> str:
    return f"step_{step:06d}"


def _write_manifest(folder: Path, noted: dict[str, Any]) -> None:
    """Writes the manifest, and returns when everything is on the disk."""
    files = _list_files(folder)
    for name in files:
        if name == _MANIFEST or not name.endswith((".safetensors", ".json")):
            raise ValueError(f"a checkpoint can hold only safetensors and JSON files, not {name!r}")
    manifest = {**noted, "files": {name: _digest_file(folder / name) for name in files}}
    with name_disk_errors(folder / _MANIFEST):
        (folder / _MANIFEST).write_text(
            json.dumps({**manifest, "sha256": _digest_manifest(manifest)}, indent=1) + "\n",
            encoding="utf-8",
        )
    sync_tree(folder)


def _read_verified(folder: Path, step: int) -> dict[str, Any]:
    """Verifies every file against the manifest and returns the state.

    Raises:
        _DamagedError: With the name of the file that differs.
    """
    manifest = _read_manifest(folder)
    if manifest.pop("sha256", None) != _digest_manifest(manifest):
        raise _DamagedError(f"its {_MANIFEST} is missing, truncated or altered")
    if not isinstance(manifest.get("state"), dict) or not isinstance(manifest.get("files"), dict):
        raise _DamagedError(f"its {_MANIFEST} was written by a different program")
    if manifest.get("step") != step:
        raise _DamagedError(f"its {_MANIFEST} is for step {manifest.get('step')}")
    sums = manifest["files"]
    found = set(_list_files(folder)) - {_MANIFEST}
    if found != set(sums):
        raise _DamagedError(f"missing or extra files: {', '.join(sorted(found ^ set(sums)))}")
    for name, noted in sums.items():
        if not (folder / name).is_file():
            raise _DamagedError(f"{name} is not a file, or is a broken link")
        try:
            digest = retry_disk(partial(_digest_file, folder / name))
        except OSError as error:
            raise _DamagedError(f"{name} cannot be read ({error.strerror})") from error
        if digest != noted:
            raise _DamagedError(f"{name} was truncated or altered")
    return manifest["state"]


def _read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a checkpoint; empty if unreadable."""
    path = folder / _MANIFEST
    try:
        manifest = json.loads(retry_disk(path.read_bytes)) if path.is_file() else None
    except (OSError, ValueError, RecursionError):
        return {}
    if isinstance(manifest, dict):
        return manifest
    return {}


def _digest_manifest(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _list_files(folder: Path) -> list[str]:
    return sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()
    )


def _digest_file(path: Path) -> FileDigest:
    with name_disk_errors(path):
        return read_sum(path)
