"""The training loop of every run: a step, then what is due after it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from lockstep.algorithms.job import RunLength, Step, StepEvent
from lockstep.report.progress import Progress
from lockstep.run.stop import Stop, Stopped


@dataclass(frozen=True)
class Start:
    """The point from which a run starts or resumes: finished steps, and used rows of data."""

    step: int = 0
    position: int = 0


def loop(
    step: Step,
    start: Start,
    run_length: RunLength,
    progress: Progress,
    end_step: Callable[[StepEvent], None],
    stop: Stop,
    guard: Callable[[int, int], AbstractContextManager[None]],
) -> None:
    """Runs steps from `start` up to `run_length`, each within `guard(step, position)`.

    Raises:
        Stopped: `stop` ended the run early.
    """
    number = start.step
    position = start.position
    stop.begin()
    while not run_length.over(number, position):
        with guard(number, position):
            result = step(number, position)
        number = number + 1
        position = result.position
        finished = run_length.over(number, position)
        why = stop.check_after_step()
        with progress.phase("metrics"):
            # wait for the device here, so that the log's timing excludes it
            values = result.metrics.floats()
        event = StepEvent(number, result, finished, finished or why is not None, values)
        with progress.phase("log"):
            end_step(event)
            progress.step(number, event.values, result.tokens)
        if why is not None and not finished:
            reason, code = why
            raise Stopped(
                f"stopped after step {number}: {reason}; rerun the command to resume",
                code,
            )
