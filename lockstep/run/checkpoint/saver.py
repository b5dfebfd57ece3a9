"""Asynchronous checkpoints: learners copy and write states; a thread checksums and renames."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from lockstep.algorithms.job import Checkpointable
from lockstep.learners.base import NotSavedError
from lockstep.run.checkpoint.checkpoints import CheckpointStore


@dataclass(frozen=True)
class UnfinishedCheckpoint:
    """A checkpoint that is being written."""

    staging: Path
    step: int
    state: dict[str, Any]
    score: float | None


class CheckpointSaver:
    """Saves one checkpoint at a time.

    Leaving the `with` block finishes the current one, unless the block was interrupted.

    Args:
        checkpoints: The checkpoints of the run.
        learners: Learners to save, by name.

    Attributes:
        begun: The checkpoint that is being written, if one is.
    """

    def __init__(
        self, checkpoints: CheckpointStore, learners: Mapping[str, Checkpointable]
    ) -> None:
        self._checkpoints = checkpoints
        self._learners = learners
        self.begun: UnfinishedCheckpoint | None = None
        self._sealing: threading.Thread | None = None
        self._error: Exception | None = None

    def begin_checkpoint(
        self, step: int, state: dict[str, Any], score: float | None = None
    ) -> None:
        """Begins a checkpoint after finishing the previous one; returns when training may continue.

        Raises:
            CheckpointError: See `CheckpointStore.seal_checkpoint`; for this checkpoint or the
                previous one.
        """
        self.advance_checkpoint(wait=True)
        staging = self._checkpoints.begin_checkpoint(step)
        for name, learner in self._learners.items():
            learner.save(staging / name)
        # only after all have begun: before that it must not be sealed
        self.begun = UnfinishedCheckpoint(staging, step, state, score)

    def advance_checkpoint(self, wait: bool) -> None:
        """Advances the current checkpoint as far as possible, or to its end if `wait`.

        Raises like `begin_checkpoint`.
        """
        if self.begun is None:
            return
        if self._sealing is None:
            begun = self.begun
            try:
                saved = all(learner.poll_save(wait) for learner in self._learners.values())
            except NotSavedError as error:
                self.begun = None
                raise self._checkpoints.build_save_error(
                    begun.step, error, begun.staging
                ) from error
            if not saved:
                return
            # A daemon, so that a second Ctrl-C need not wait for the disk.
            self._sealing = threading.Thread(
                target=self._seal_checkpoint, args=(begun,), daemon=True
            )
            self._sealing.start()
        self._sealing.join(None if wait else 0.0)
        if self._sealing.is_alive():
            return
        self.begun = self._sealing = None
        error = self._error
        self._error = None
        if error is not None:
            raise error

    def __enter__(self) -> CheckpointSaver:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.advance_checkpoint(wait=True)
        elif issubclass(kind, Exception):
            with suppress(Exception):  # report the block's own error instead
                self.advance_checkpoint(wait=True)

    def _seal_checkpoint(self, begun: UnfinishedCheckpoint) -> None:
        try:
            self._checkpoints.seal_checkpoint(begun.staging, begun.step, begun.state, begun.score)
        except Exception as error:  # raised by the next `advance_checkpoint`
            self._error = error
