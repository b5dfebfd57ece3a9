"""Opening of a run's folder by the one process that may write to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

from lockstep.config.hub import write_pins
from lockstep.config.loading import Loaded, describe
from lockstep.data.template_date import keep_date
from lockstep.disk import is_user_error
from lockstep.errors import InputError, LockstepError, RunError
from lockstep.run.crash import CRASH, write_crash
from lockstep.run.folder import lock_folder, make, write_once
from lockstep.run.footprint import Footprint
from lockstep.run.machine import as_noted
from lockstep.run.messages import add_message
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
