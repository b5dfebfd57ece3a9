"""Results in parts: an atomic file for each block of work, and in the end one file of all in order."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lockstep.disk import sync
from lockstep.whole_files import write_whole


@dataclass(frozen=True)
class Parts:
    """The parts of one file. One process at a time may write.

    Attributes:
        whole: The joined file.
        count: Number of parts, numbered from 0.
    """

    whole: Path
    count: int

    @property
    def folder(self) -> Path:
        """Folder of the parts until they are joined."""
        return self.whole.parent / "parts"

    def missing(self) -> list[int]:
        """Numbers of the parts that are still to be written."""
        written = {path.stem for path in self.folder.glob("*.jsonl")}
        return [number for number in range(self.count) if self._path(number).stem not in written]

    def write(self, number: int, lines: str) -> None:
        """Writes a part."""
        self.folder.mkdir(exist_ok=True)
        write_whole(self._path(number), [lines.encode()])
        sync(self.folder)

    def contents(self) -> Iterator[bytes]:
        """Yields all parts in order."""
        return (self._path(number).read_bytes() for number in range(self.count))

    def join(self) -> None:
        """Joins the parts to the whole file, and removes them when it is on the disk."""
        write_whole(self.whole, self.contents())
        sync(self.whole.parent)
        self.clear()

    def clear(self) -> None:
        """Removes parts that a kill left beside the whole file."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:08d}.jsonl"
