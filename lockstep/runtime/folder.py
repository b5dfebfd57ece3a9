"""A run's folder: made, noted, locked."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import transformers

import lockstep
from lockstep.config import Loaded, describe, load
from lockstep.runtime.identity import ChangedError, differences, recipe_identity

FRAME = "initial"
"""Folder, in a run's, of all that an export of its model needs besides weights; of new models the weights too."""


def run_folder(loaded: Loaded, allow_changes: bool) -> Path:
    """Makes the run's folder and notes the resolved recipe and the machine in it.

    With `allow_changes` a folder of another recipe becomes one of this recipe, which is then no longer finished.

    Raises:
        ValueError: If the folder cannot be made.
        ChangedError: If it holds a run of another recipe, and that is not allowed.
    """
    folder = loaded.run_folder
    require_writable(folder)
    recipe, changed = folder / "recipe.yaml", changed_options(loaded, allow_changes)
    if recipe.exists() and recipe.read_text() != describe(loaded):
        recipe.unlink()
    if changed:
        shutil.rmtree(folder / "final", ignore_errors=True)
    return noted_folder(loaded, folder)


def changed_options(loaded: Loaded, allow_changes: bool) -> list[str]:
    """What is another recipe than that of the run which the folder holds, one line for each option.

    Raises:
        ChangedError: If something is, and that is not allowed.
    """
    folder, recipe = loaded.run_folder, loaded.run_folder / "recipe.yaml"
    if not recipe.exists() or recipe.read_text() == describe(loaded):
        return []
    changed = differences(recipe_identity(load(str(recipe))), recipe_identity(loaded))
    if changed and not allow_changes:
        raise ChangedError(
            f"{folder} holds a run of another recipe:\n  " + "\n  ".join(changed) + "\nchoose another run.folder, "
            "remove it, or go on with this recipe by --allow-changes"
        )
    return changed


def noted_folder(loaded: Loaded, folder: Path) -> Path:
    """Makes a folder and notes the resolved recipe and the machine in it, where they are not noted yet."""
    folder.mkdir(parents=True, exist_ok=True)
    note(folder / "recipe.yaml", describe(loaded))
    versions = {
        "recipe": loaded.name,
        "lockstep": lockstep.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "threads": torch.get_num_threads(),
        "machine": platform.platform(),
    }
    environment, now = folder / "environment.json", json.dumps(versions, indent=2) + "\n"
    note(environment, now)
    if environment.read_text() != now:
        print(f"note: {environment} is not the environment of now; continued steps may differ in their last bits")
    return folder


def require_writable(folder: Path) -> None:
    """Raises ValueError if a run's folder cannot be made, or not written to."""
    place = standing(folder)
    if not (place.is_dir() and os.access(place, os.W_OK)):
        raise ValueError(
            f"the run folder {folder} cannot be made, because {place} is not a folder that can be written to; set "
            "run.folder to another place"
        )


def standing(folder: Path) -> Path:
    """The innermost of a folder and those above it that exists."""
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if _exists(path))


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # something above it is a file
        return False


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keeps other processes out of a run's folder; the system lets go of it when this one ends, however it ends.

    Raises:
        ValueError: If another process has it.
    """
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"{folder} is in use by another process; wait for it, end it, or set run.folder to start another run"
            ) from None
        yield


def note(path: Path, text: str) -> None:
    """Writes a small file once; it appears whole or not at all."""
    if not path.exists():
        aside = path.with_name(f".{path.name}-aside")
        aside.write_text(text)
        aside.rename(path)
