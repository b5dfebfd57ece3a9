"""Opens a run's folder for the one process that may write to it."""

from __future__ import annotations

import contextlib
import json
import shutil
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event

from lockstep.config.hub import write_pins
from lockstep.config.hub_name import PINS
from lockstep.config.loading import COLUMNS, LoadedRecipe, describe_recipe
from lockstep.core.errors import LockstepError, RunError
from lockstep.data.template_date import FILE, keep_date
from lockstep.report.log import CRASH
from lockstep.run.folder.files import FRAME, LOCK, lock_folder, write_once
from lockstep.run.folder.machine import use_recorded_machine
from lockstep.run.stop import StoppedRun
from lockstep.system.whole_files import write_whole


@contextmanager
def open_run(loaded: LoadedRecipe, folder: Path) -> Iterator[Callable[[], None]]:
    """Creates and locks a run's folder, and records the recipe and the machine in it.

    The block receives a function to call once the run has started. If the block fails before that,
    new files are removed. A crash leaves `crash.txt` in any case.

    Raises:
        InputError: Another process has the folder.
        RunError: An operating system error after the function was called.
    """
    with _clean_start(folder) as started, _record_crashes(folder, started):
        write_once(folder / "recipe.yaml", describe_recipe(loaded))
        write_pins(loaded, folder)
        (folder / COLUMNS).unlink(missing_ok=True)
        if loaded.told:
            write_whole(folder / COLUMNS, [json.dumps(dict(loaded.told)).encode()])
        with use_recorded_machine(loaded, folder), keep_date(folder):
            yield started.set


_MADE = (
    "recipe.yaml",
    PINS,
    COLUMNS,
    "environment.json",
    "inputs.json",
    "data",
    FRAME,
    "judges",
    FILE,
)
"""Files and folders that a run may create before its first step.

A failed start removes only these.
"""


@contextmanager
def _clean_start(folder: Path) -> Iterator[Event]:
    """Creates and locks a folder; cleans up if the block fails before it sets the event."""
    if folder.is_dir():
        before = {path.name for path in folder.iterdir()}
    else:
        before = set[str]()
    # innermost first
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    with lock_folder(folder):
        started = Event()
        try:
            yield started
        except BaseException:
            if not started.is_set():
                _remove_added(folder, before, missing)
            raise


def _remove_added(folder: Path, before: set[str], missing: Sequence[Path]) -> None:
    for path in folder.iterdir():
        if path.name in before or path.name.removeprefix(".").split("-")[0] not in _MADE:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    if LOCK not in before:  # last, because then any process may take the folder
        (folder / LOCK).unlink(missing_ok=True)
    for made in missing:
        with contextlib.suppress(OSError):  # other runs are in it
            made.rmdir()


@contextmanager
def _record_crashes(folder: Path, started: Event) -> Iterator[None]:
    """Records an error in the block; writes `crash.txt` unless it is a one-sentence user error."""
    try:
        yield
    except BaseException as error:
        expected = isinstance(error, LockstepError | StoppedRun) or not isinstance(error, Exception)
        if expected or (isinstance(error, OSError) and not started.is_set()):
            raise
        # the traceback includes a worker's, and the notes of `Progress.phase` on phase and step
        with contextlib.suppress(OSError, MemoryError):  # the disk or the memory may be full
            (folder / CRASH).write_text(
                "".join(traceback.format_exception(error)), encoding="utf-8"
            )
        if isinstance(error, OSError):
            raise RunError(f"{error}; the traceback is in {folder / CRASH}") from error
        error.add_note(
            f"the run crashed; see {folder / CRASH}; rerun the command to resume, with "
            "--allow-changes if you fixed code that it names"
        )
        raise
