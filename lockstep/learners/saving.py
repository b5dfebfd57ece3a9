"""Writes a learner's state while training continues, from a copy in host memory if it fits."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from safetensors.torch import save_file

from lockstep.distributed.ranks import ALONE, RankMesh
from lockstep.learners.base import NotSavedError
from lockstep.learners.boxes import FileContents
from lockstep.system import machine_memory

COUNTERS = "learner.json"

_ROOM = 1.5
"""Free memory that copies need, as a multiple of their size, to leave memory for training."""

StateFiles = Mapping[str, FileContents]


class StateWriter:
    """Writes safetensors, one save at a time.

    Args:
        ranks: Number of ranks that save at the same time, possibly all on this machine.
    """

    def __init__(self, ranks: RankMesh = ALONE) -> None:
        self._ranks = ranks
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def begin_save(
        self,
        folder: Path,
        files: StateFiles,
        counters: Mapping[str, int] | None,
        still: bool = False,
    ) -> None:
        """Begins a save; returns when the tensors may change again.

        Args:
            folder: Target folder; created if missing.
            files: Files by name.
            counters: Written to learner.json; None: another rank writes it.
            still: Whether the tensors never change, so that no copy is needed.
        """
        self.poll_writing(wait=True)
        unchanging = dict(files)
        if not still:
            size = 0
            for file in files.values():
                size += sum(tensor.nbytes for tensor in file.tensors.values())
            if _ROOM * self._ranks.rank_count * size >= machine_memory.free_bytes():
                self._write_files(folder, files, counters)
                return
            for name, file in files.items():
                copies = {key: tensor.to("cpu", copy=True) for key, tensor in file.tensors.items()}
                unchanging[name] = replace(file, tensors=copies)
        # Daemonic, so that a forced exit of this process need not wait for a disk.
        self._thread = threading.Thread(
            target=self._write_files, args=(folder, unchanging, counters), daemon=True
        )
        self._thread.start()

    def poll_writing(self, wait: bool) -> bool:
        """True if everything is written.

        Raises:
            NotSavedError: If it could not be written.
        """
        if self._thread is not None:
            self._thread.join(None if wait else 0.0)
            if self._thread.is_alive():
                return False
            self._thread = None
        error = self._error
        self._error = None
        if error is not None:
            raise NotSavedError(str(error)) from error
        return True

    def _write_files(
        self, folder: Path, files: StateFiles, counters: Mapping[str, int] | None
    ) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name, file in files.items():
                tensors = {key: tensor.contiguous() for key, tensor in file.tensors.items()}
                save_file(tensors, folder / name, file.file_metadata or None)
                # as any file here; safetensors creates them private
                (folder / name).chmod(folder.stat().st_mode & 0o666)
            if counters is not None:
                (folder / COUNTERS).write_text(json.dumps(counters), encoding="utf-8")
        except Exception as error:  # of any kind: an error in a thread is invisible elsewhere
            self._error = error
