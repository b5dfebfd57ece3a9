"""A run's folder and its files."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from glob import escape
from pathlib import Path
from typing import Any

from lockstep.config.loading import LoadedRecipe, describe_recipe, load_run
from lockstep.core.errors import InputError, shorten_text
from lockstep.report.log import LOCK
from lockstep.run.folder.identity import ChangedError, list_differences, recipe_identity
from lockstep.system.records import is_file, refuse_other
from lockstep.system.sums import SUMS
from lockstep.system.whole_files import write_whole
from lockstep.system.yaml12 import YAMLKeys, flatten_tree, parse_or_text

FRAME = "initial"
"""Subfolder of a run with everything that an export needs, except weights.

For a model from scratch, it also holds the initial weights.
"""
_LENGTH = {("run", "max_steps"), ("run", "max_epochs")}
_LOGS = (".log", ".txt", ".out", ".err")
"""Suffixes of files that a run's folder may hold before the run, such as a launcher's output."""


def adopt_folder(loaded: LoadedRecipe, changed: Sequence[str]) -> None:
    """Writes this recipe to a run's folder; if options changed, the run becomes unfinished.

    The caller holds its lock. At any instant the folder belongs to the old recipe or, unfinished,
    to the new one.

    Args:
        loaded: The recipe.
        changed: The lines of `find_changed_options`.
    """
    folder = loaded.run_folder
    old = folder / ".final-before"
    recipe = folder / "recipe.yaml"
    if changed and (folder / "final").exists():
        shutil.rmtree(old, ignore_errors=True)
        (folder / "final").rename(old)
    if recipe.exists() and not is_current(loaded):
        write_whole(recipe, [describe_recipe(loaded).encode()])
    shutil.rmtree(old, ignore_errors=True)
    if changed:
        (folder / SUMS).unlink(missing_ok=True)


def describe_shorter_run(loaded: LoadedRecipe) -> str | None:
    """Explains how to continue a run that differs only in its length; None if there is none."""
    folder = loaded.run_folder
    options = _drop_length(describe_recipe(loaded))
    for recipe in sorted(folder.parent.glob(f"{escape(loaded.name)}-*/recipe.yaml")):
        if recipe.parent != folder and _drop_length(recipe.read_text(encoding="utf-8")) == options:
            return (
                f"{recipe.parent} differs from this run only in run.max_steps or run.max_epochs; "
                "this run starts from the beginning; to continue that one, add "
                f"run.folder={recipe.parent} --allow-changes"
            )
    return None


def _drop_length(recipe: str) -> dict[YAMLKeys, Any]:
    """The options of a recipe, without its length."""
    options = dict(flatten_tree(parse_or_text(recipe)))
    return {keys: options[keys] for keys in options.keys() - _LENGTH}


def is_current(loaded: LoadedRecipe) -> bool:
    """True if the folder holds a run of exactly this recipe."""
    recipe = loaded.run_folder / "recipe.yaml"
    return is_file(recipe) and recipe.read_bytes() == describe_recipe(loaded).encode()


def find_changed_options(loaded: LoadedRecipe, allow_changes: bool) -> list[str]:
    """Lists the options that differ from those of the folder's run, one line each.

    Raises:
        ChangedError: Some differ and that is not allowed; a different initial model never is.
    """
    folder = loaded.run_folder
    recipe = loaded.run_folder / "recipe.yaml"
    if not recipe.exists() or is_current(loaded):
        return []
    changed = list_differences(recipe_identity(load_run(folder)), recipe_identity(loaded))
    has_other_model = any(line.startswith("recipe.model.") for line in changed)
    if has_other_model or (changed and not allow_changes):
        raise ChangedError(
            f"{folder} holds a run of a different recipe:\n  "
            + "\n  ".join(changed)
            + (
                "\nchoose a different run.folder, remove it, or, with the same model, continue "
                "with "
                "this recipe by --allow-changes"
            )
        )
    return changed


def require_writable(folder: Path) -> None:
    """Raises InputError if a run's folder is not writable, or holds something other than a run."""
    try:
        names = list[str]()
        if folder.is_dir() and not (folder / "recipe.yaml").exists():
            names = sorted(path.name for path in folder.iterdir())
        for name in names:
            if not name.startswith(".") and not name.endswith(_LOGS):
                raise InputError(
                    f"the folder {folder} holds {name} and is not a run; choose a new or empty "
                    "folder"
                )
        standing = find_standing(folder)
    except OSError as error:
        raise _build_folder_error(folder, f"the system denied it ({error.strerror})") from error
    if not (standing.is_dir() and os.access(standing, os.W_OK)):
        raise _build_folder_error(folder, f"{standing} is not a writable folder")


def find_standing(folder: Path) -> Path:
    """The innermost existing folder among a folder and its parents.

    Raises OSError if the system denies access.
    """
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())


def _build_folder_error(folder: Path, why: str) -> InputError:
    return InputError(
        f"the run folder {shorten_text(str(folder))} cannot be created: {why}; set run.folder to a "
        "different path"
    )


class FolderInUseError(InputError):
    """Another process is using a run's folder."""


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Locks a run's folder against other processes; the lock ends with this process.

    Raises:
        FolderInUseError: Another process has the lock.
    """
    refuse_other(folder / LOCK)
    with (folder / LOCK).open("w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            here = os.stat(folder / LOCK)  # another process may have just removed the folder
            if here.st_ino != os.fstat(file.fileno()).st_ino:
                raise BlockingIOError
        except (BlockingIOError, FileNotFoundError):
            raise FolderInUseError(
                f"{folder} is in use by another process; wait for it, stop it, or set run.folder "
                "to start a new run"
            ) from None
        yield


def write_once(path: Path, text: str) -> None:
    """Writes a small file atomically, unless it exists."""
    if not path.exists():
        write_whole(path, [text.encode()])
