"""A user's function as a tracker: it receives what the logs receive, and after a failure or a kill what it missed.

It is called as `track(kind, step, data)` in the command's process:

    run       step: the last step whose data to keep; those of later steps follow, some of them for a second time;
              data: folder, recipe, environment
    metrics   data: a number for each name
    timings   data: the seconds of each phase
    samples   data: responses, as in samples.jsonl
    outcome   data: finished, failed or interrupted
"""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from lockstep.config import user_code
from lockstep.config.named_code import name_code
from lockstep.errors import InputError, RunError
from lockstep.records import is_file, read_record
from lockstep.run.trackers.base import Outcome
from lockstep.run.trackers.view import Facts, replay
from lockstep.whole_files import write_whole

_OPTION = "trackers.function"
_KEPT = "tracker_step.json"
"""File in a run's folder: the last step of which the function received every entry."""


class TrackError(RuntimeError):
    """The user's function has raised something."""


class FunctionView:
    """A function that receives each line of the logs."""

    def __init__(self, reference: str, facts: Facts) -> None:
        """Imports the function.

        Raises:
            InputError: There is none, it does not take three arguments, or it is an `async def`.
        """
        name_code(_OPTION, reference)
        self._track = user_code.load(reference, _OPTION, "function")
        if inspect.iscoroutinefunction(self._track):
            raise InputError(f"{_OPTION} {reference} is an `async def`, which no one would await; make it a `def`")
        try:
            inspect.signature(self._track).bind("metrics", 0, {})
        except TypeError:
            raise InputError(f"{_OPTION} {reference} does not take three arguments: kind, step and data") from None
        except ValueError:
            """A function in C without a signature."""
        self._reference, self._facts = reference, facts
        self._file = facts.folder / _KEPT
        self._newest, self._has_missed = -1, False

    @property
    def where(self) -> str:
        return self._reference

    def rewind(self, step: int) -> None:
        kept = read_record(self._file, int, "remove it, and all is told again") if is_file(self._file) else -1
        self._newest = min(kept, step)
        facts = self._facts
        data = {"folder": str(facts.folder), "recipe": facts.recipe, "environment": facts.environment}
        self._tell("run", self._newest, data)
        replay(facts.folder, self, after=self._newest)

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        if step > self._newest:
            self._note_told()
            self._newest = step
        self._tell("metrics", step, dict(values))

    def timings(self, step: int, seconds: Mapping[str, float]) -> None:
        self._tell("timings", step, dict(seconds))

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        self._tell("samples", step, [dict(row) for row in rows])

    def close(self, outcome: Outcome) -> None:
        self._tell("outcome", self._newest, outcome)
        self._note_told()

    def _note_told(self) -> None:
        """Notes that the function received all entries up to the newest step, unless it has missed one."""
        if self._has_missed:
            return
        try:
            write_whole(self._file, [json.dumps(self._newest).encode()])
        except (InputError, RunError):
            self._has_missed = True  # the entry at hand does not reach it
            raise

    def _tell(self, kind: Literal["run", "metrics", "timings", "samples", "outcome"], step: int, data: Any) -> None:
        """Calls the function with a copy of the data.

        Raises:
            TrackError: It has raised something, SystemExit included.
        """
        try:
            self._track(kind, step, copy.deepcopy(data))
        except SystemExit as error:
            self._has_missed = True
            raise TrackError(f"it has raised SystemExit: {error}") from None
        except Exception as error:
            self._has_missed = True
            raise TrackError(user_code.describe_error(error)) from error
