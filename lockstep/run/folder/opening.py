"""Opening of a run's folder by the one process that may write to it."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from lockstep.config.hub import write_pins
from lockstep.config.hub_name import PINS
from lockstep.config.loading import Loaded, describe
from lockstep.data.template_date import FILE, keep_date
from lockstep.disk import is_user_error
from lockstep.errors import InputError, LockstepError, RunError
from lockstep.run.folder.crash import CRASH, write_crash
from lockstep.run.folder.files import FRAME, LOCK, add_message, lock_folder, make, write_once
from lockstep.run.folder.machine import as_noted
from lockstep.run.stop import Stopped


@contextmanager
def open_run(loaded: Loaded, folder: Path) -> Iterator[Callable[[], None]]:
    """Makes a run's folder, locks it, and notes the recipe and the machine in it.

    If the block fails before it calls the function that it is given, what was made is removed. A crash leaves
    `crash.txt`, also then.

    Raises:
        InputError: If the folder cannot be made, or another process has it; and for an error of the operating system
            before the function was called.
        RunError: For an error of the operating system afterwards.
    """
    before = Footprint.before(folder)
    make(folder)
    with lock_folder(folder), before.restore_on_failure() as started, _crashes_noted(loaded, folder, started):
        write_once(folder / "recipe.yaml", describe(loaded))
        write_pins(loaded, folder)
        with as_noted(loaded, folder), keep_date(folder):
            yield started.set


@contextmanager
def _end_recorded(folder: Path) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        add_message(folder, None, f"ended by {type(error).__name__}: {error}")
        raise


@contextmanager
def _crashes_noted(loaded: Loaded, folder: Path, started: Event) -> Iterator[None]:
    """Writes `crash.txt` for an error in the block that is not one sentence for the user; records any."""
    try:
        with _end_recorded(folder):
            yield
    except (LockstepError, Stopped):
        raise
    except OSError as error:
        if not started.is_set():
            if is_user_error(error):
                raise InputError(str(error)) from error
            raise RunError(
                f"{error}; the disk fails, or is full: mend that, and give the same command again"
            ) from error
        write_crash(error, loaded, folder)
        raise RunError(f"{error}; where that was is in {folder / CRASH}") from error
    except Exception as error:
        write_crash(error, loaded, folder)
        error.add_note(
            f"this is a crash, which {folder / CRASH} describes; the same command resumes the run, with "
            "--allow-changes where code that it names has been mended since"
        )
        raise


_MADE = ("recipe.yaml", PINS, "environment.json", "inputs.json", "messages.jsonl", "data", FRAME, "judges", FILE)
"""Files and folders that a run may add to its folder before its first step; a failed start removes nothing else."""


@dataclass(frozen=True)
class Footprint:
    """A snapshot of a run's folder before the run prepared it.

    Attributes:
        folder: Folder of the run.
        names: Names in it.
        missing: The folder and those above it that did not exist, the innermost first.
    """

    folder: Path
    names: frozenset[str]
    missing: tuple[Path, ...]

    @classmethod
    def before(cls, folder: Path) -> Footprint:
        names = frozenset(path.name for path in folder.iterdir()) if folder.is_dir() else frozenset()
        return cls(folder, names, tuple(path for path in (folder, *folder.parents) if not path.exists()))

    @contextmanager
    def restore_on_failure(self) -> Iterator[Event]:
        """Removes what was added if the block fails before it sets the event that it is given.

        The caller holds the run's lock.
        """
        started = Event()
        try:
            yield started
        except BaseException:
            if not started.is_set():
                self._restore()
            raise

    def _restore(self) -> None:
        for path in self.folder.iterdir():
            if path.name not in self.names and path.name.removeprefix(".").split("-")[0] in _MADE:
                _remove(path)
        if LOCK not in self.names:  # last of all, since then any process may take the folder
            (self.folder / LOCK).unlink(missing_ok=True)
        for folder in self.missing:
            with contextlib.suppress(OSError):  # of other runs
                folder.rmdir()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
