"""The training loop of every run: a step, then its logging, validation and saving."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from lockstep.algorithms.job import RunLength, StepEvent, StepFunction
from lockstep.report.progress import RunProgress
from lockstep.run.stop import StoppedRun, StopRequests


@dataclass(frozen=True)
class StartPoint:
    """The point from which a run starts or resumes: finished steps, and used rows of data."""

    step: int = 0
    position: int = 0


def run_steps(
    step: StepFunction,
    start: StartPoint,
    run_length: RunLength,
    progress: RunProgress,
    end_step: Callable[[StepEvent], bool],
    stop: StopRequests,
    guard: Callable[[int, int], AbstractContextManager[None]],
) -> None:
    """Runs steps from `start` up to `run_length`, each within `guard(step, position)`.

    `end_step` returns True if the run is finished.

    Raises:
        StoppedRun: `stop` ended the run early.
    """
    number = start.step
    position = start.position
    stop.start_timing()
    while not run_length.is_over(number, position):
        with guard(number, position):
            result = step(number, position)
        number = number + 1
        position = result.position
        finished = run_length.is_over(number, position)
        why = stop.check_after_step()
        with progress.phase("metrics"):
            # wait for the device here, so that the log's timing excludes it
            values = result.metrics.floats()
        event = StepEvent(number, result, finished, finished or why is not None, values)
        with progress.phase("log"):
            finished = end_step(event)
            progress.end_step(number, event.values, result.tokens)
        if finished:
            return
        if why is not None:
            reason, code = why
            raise StoppedRun(
                f"stopped after step {number}: {reason}; rerun the command to resume",
                code,
            )
