"""A run's folder: made, noted, locked."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
import transformers

import lockstep
from lockstep.config import Loaded, describe, load
from lockstep.runtime.identity import ChangedError, differences, recipe_identity

FRAME = "initial"
"""Folder, in a run's, of all that an export of its model needs besides weights; of new models the weights too."""


def adopt(loaded: Loaded, changed: Sequence[str]) -> None:
    """Makes a folder whose options were others one of this recipe; a run that has changed is no longer finished.

    Only for whoever holds its lock. At any instant the folder is that of the old recipe or, unfinished, of the new one.

    Args:
        loaded: The recipe.
        changed: What `changed_options` said.
    """
    folder = loaded.run_folder
    old, recipe = folder / ".final-before", folder / "recipe.yaml"
    if changed and (folder / "final").exists():
        shutil.rmtree(old, ignore_errors=True)
        (folder / "final").rename(old)
    if recipe.exists() and recipe.read_text() != describe(loaded):
        write_whole(recipe, [describe(loaded).encode()])
    shutil.rmtree(old, ignore_errors=True)


def changed_options(loaded: Loaded, allow_changes: bool) -> list[str]:
    """What is another recipe than that of the run which the folder holds, one line for each option.

    Raises:
        ChangedError: If something is, and that is not allowed; another first model never is.
    """
    folder, recipe = loaded.run_folder, loaded.run_folder / "recipe.yaml"
    if not recipe.exists() or recipe.read_text() == describe(loaded):
        return []
    changed = differences(recipe_identity(load(str(recipe))), recipe_identity(loaded))
    if allow_changes and any(line.startswith("recipe.model.") for line in changed):
        raise ChangedError(
            f"{folder} holds a run of another model:\n  " + "\n  ".join(changed) + "\nchoose another run.folder, or "
            "remove it"
        )
    if changed and not allow_changes:
        raise ChangedError(
            f"{folder} holds a run of another recipe:\n  " + "\n  ".join(changed) + "\nchoose another run.folder, "
            "remove it, or go on with this recipe by --allow-changes"
        )
    return changed


def noted_folder(loaded: Loaded, folder: Path) -> Path:
    """Makes a folder and notes the resolved recipe and the machine in it, where they are not noted yet."""
    folder.mkdir(parents=True, exist_ok=True)
    write_once(folder / "recipe.yaml", describe(loaded))
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
    write_once(environment, now)
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


LOCK = ".lock"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keeps other processes out of a run's folder; the system lets go of it when this one ends, however it ends.

    Raises:
        ValueError: If another process has it.
    """
    with (folder / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            here = os.stat(folder / LOCK)  # another process may just have taken the folder back
            if here.st_ino != os.fstat(file.fileno()).st_ino:
                raise BlockingIOError
        except (BlockingIOError, FileNotFoundError):
            raise ValueError(
                f"{folder} is in use by another process; wait for it, end it, or set run.folder to start another run"
            ) from None
        yield


def write_once(path: Path, text: str) -> None:
    """Writes a small file where there is none; it appears whole or not at all."""
    if not path.exists():
        write_whole(path, [text.encode()])


def write_whole(path: Path, contents: Iterable[bytes]) -> None:
    """Writes a file aside; when it has its name, all its bytes are on the disk. One process at a time may do so.

    Raises:
        ValueError: If the name is that of something that is no file, such as a device.
    """
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is there and is no file, so it is not replaced; choose another name")
    aside = path.with_name(f".{path.name}-aside")
    with aside.open("wb") as file:
        file.writelines(contents)
        file.flush()
        os.fsync(file.fileno())
    aside.rename(path)
