"""Writes the logs of a run (`lockstep.report.log`), the data that all trackers show."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from lockstep.report.log import LOGS, METRICS, SAMPLES, TIMINGS, encode_line, read_lines
from lockstep.system.disk import sync_path
from lockstep.system.records import is_file
from lockstep.system.sums import FileDigest
from lockstep.system.whole_files import append_lines


class RunLogs:
    """The logs of a run: append-only, only complete lines, each step once.

    One process at a time may write; any number may read meanwhile.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._written: dict[str, tuple[int, Any]] = {}

    def rewind_to(self, step: int) -> None:
        """Truncates lines of later steps, and a last line that a kill cut short.

        Called once, before any other method.

        Lines are in the order of their steps, so each file is truncated once, which is atomic.

        Args:
            step: Last step to keep. A run without a checkpoint rewinds to −1, because step 0, the
                validation before training, will be logged again.
        """
        for name in LOGS:
            path = self.folder / name
            if is_file(path):
                remaining = takewhile(lambda line: line[0]["step"] <= step, read_lines(path))
                os.truncate(path, sum(size for _, size in remaining))
                with path.open("rb") as file:  # samples may not fit in memory
                    digest = hashlib.file_digest(file, "sha256")
                    self._written[name] = (file.tell(), digest)

    def add_metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Adds metrics to a step; call it several times for training and validation."""
        self._append_rows(METRICS, step, [values])

    def add_timings(self, step: int, seconds: Mapping[str, float]) -> None:
        """Adds the seconds that each phase of a step took."""
        self._append_rows(TIMINGS, step, [seconds])

    def add_samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Adds responses of a step."""
        self._append_rows(SAMPLES, step, rows)

    def sync_to_disk(self) -> None:
        """Returns when all logs are on the disk, so that they reach as far as a checkpoint."""
        paths = [self.folder / name for name in LOGS]
        for path in [*filter(Path.is_file, paths), self.folder]:
            sync_path(path)

    def list_digests(self) -> dict[str, FileDigest]:
        """Size and digest of each log as written by this run, not as found on the disk.

        Other programs may have written to the files.
        """
        return {
            name: {"bytes": size, "sha256": own.hexdigest()}
            for name, (size, own) in self._written.items()
        }

    def _append_rows(self, name: str, step: int, rows: Iterable[Mapping[str, Any]]) -> None:
        content = b"".join(encode_line(step, row) for row in rows)
        append_lines(self.folder / name, content)
        size, digest = self._written.get(name, (0, hashlib.sha256()))
        digest.update(content)
        self._written[name] = (size + len(content), digest)
