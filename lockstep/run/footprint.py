"""The footprint of a start: what it adds to the run's folder, so that a failed start can remove exactly that."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from lockstep.config.hub_name import PINS
from lockstep.data.template_date import FILE
from lockstep.run.folder import FRAME, LOCK

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
