"""Hooks between two steps of every run: log, warn, validate, save."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, assert_never

from lockstep.algorithms.job import Job, RunLength, StepEvent
from lockstep.cluster.sampler_pool import SamplerLost
from lockstep.config import RunSection
from lockstep.errors import InputError
from lockstep.monitor.agreement import Disagreement
from lockstep.report.held_out import sentence
from lockstep.report.log import suggest_metric
from lockstep.report.nothing_trained import describe_taken_out
from lockstep.report.progress import Progress
from lockstep.run.callbacks import Callbacks
from lockstep.run.checkpoint.saver import Saver
from lockstep.run.folder.faults import keep_fault
from lockstep.run.trackers.run import RunTracker


@dataclass(frozen=True)
class Hooks:
    """The hooks of one run; `all` calls them in order.

    Attributes:
        run: The section `run`, which says how often.
        job: The job that runs.
        folder: Folder of the run.
        tracker: Writes the logs.
        saver: Writes the checkpoints.
        progress: Reports to the user.
        callbacks: Functions of the user's program.
        identity: Stored in each checkpoint, see `lockstep.run.folder.identity`.
    """

    run: RunSection
    job: Job
    folder: Path
    tracker: RunTracker
    saver: Saver
    progress: Progress
    callbacks: Callbacks
    identity: dict[str, Any]

    def all(self, event: StepEvent) -> None:
        """Runs all hooks after a step."""
        self._log(event)
        self._warn(event)
        every, validated = self.run.validate_every, None
        if self.job.validate is not None and (event.finished or (every and event.step % every == 0)):
            with self.save_if_lost(event.step, event.result.position):
                validated = self._measure(event.step)
            event.values.update(validated)
        self._save(event)
        self.callbacks.step(event.step, event.values)
        if validated is not None:
            self.callbacks.validation(event.step, validated)
        self.tracker.timings(event.step, self.progress.take_timings())

    def validate(self, step: int) -> None:
        """Validates the policy on held-out rows, logs the metrics, and calls the user's program."""
        self.callbacks.validation(step, self._measure(step))

    def _measure(self, step: int) -> dict[str, float]:
        assert self.job.validate is not None, "asked only where there are held-out rows"
        where = self.folder / "faults" / f"validation_{step:06d}"
        with self.progress.phase("validate"), keep_fault(where, f"validation after step {step}", {"step": step}):
            found = self.job.validate(step)
            values = found.metrics.floats()
        if values:
            self.tracker.metrics(step, values)
        if found.samples:
            self.tracker.samples(step, found.samples)
        text = sentence(step, values)
        if text is not None:
            self.progress.note(text)
        return values

    @contextmanager
    def save_if_lost(self, step: int, position: int) -> Iterator[None]:
        """Saves the run as it is after `step` if a sampler is lost, or disagrees, inside the block.

        Every step generates before it trains, so the learners have not changed since.

        Raises:
            SamplerLost: From the block; the message adds that the run was saved.
            Disagreement: Likewise; its metrics are logged.
        """
        saved = f"the run was saved after step {step}, and the same command resumes it"
        try:
            yield
        except SamplerLost as error:
            self._save_now(step, position)
            raise SamplerLost(f"{error}; {saved}") from error
        except Disagreement as error:
            self.tracker.metrics(step + 1, error.metrics.floats())
            self._save_now(step, position)
            raise Disagreement(f"{error}; {saved}", error.metrics) from error

    def state(self, position: int) -> dict[str, Any]:
        """The state of a checkpoint besides the learners'."""
        agreement = self.job.agreement
        known = None if agreement is None else agreement.dump()
        return {"position": position, "identity": self.identity, "agreement": known, "logs": self.tracker.sums()}

    def _save_now(self, step: int, position: int) -> None:
        self.tracker.sync()
        self.saver.begin(step, self.state(position))
        self.saver.advance(wait=True)

    def _log(self, event: StepEvent) -> None:
        self.tracker.metrics(event.step, event.values)
        self.tracker.samples(event.step, event.result.samples)

    def _warn(self, event: StepEvent) -> None:
        if event.values.get("train/trained_tokens") == 0:
            why = describe_taken_out(event.values, self.job.section, self.job.filters_truncated)
            self.progress.note(f"step {event.step} trained on nothing, every response was taken out: {why}")

    def _save(self, event: StepEvent) -> None:
        """Begins a checkpoint where one is due; else advances one that is being written."""
        with self.progress.phase("save"):
            if event.step % self.run.save_every == 0 or event.leaving:
                self.tracker.sync()
                self.saver.begin(event.step, self.state(event.result.position), self._score(event))
            self.saver.advance(wait=event.leaving)

    def _score(self, event: StepEvent) -> float | None:
        """The score of the policy by `run.best`, higher is better; None where it is not wanted or not known."""
        best = self.run.best
        if best is None:
            return None
        if best.metric not in event.values:
            return self._unknown(best.metric, event)
        value = event.values[best.metric]
        if math.isnan(value):
            return None
        match best.mode:
            case "max":
                return value
            case "min":
                return -value
            case _:
                assert_never(best.mode)

    def _unknown(self, metric: str, event: StepEvent) -> None:
        """Raises on an unknown metric; at the end of a run only notes it, since the last checkpoint is worth more."""
        if event.leaving and not event.finished:  # stopped between two validations
            return
        hint = suggest_metric(metric, event.values)
        message = f"run.best.metric: this run logs no {metric} when it saves; {hint}"
        if not event.finished:
            raise InputError(message)
        self.progress.note(message)


def resolve_intervals(run: RunSection, run_length: RunLength) -> RunSection:
    """The section `run` with `validate_every` in steps, where it is a share of an epoch.

    Raises:
        InputError: The length of an epoch is unknown, or the best checkpoint would be saved without a validation.
    """
    share = run.validate_every
    if isinstance(share, int):
        return run
    if run_length.epoch is None:
        raise InputError(
            f"run.validate_every={share:g} is a share of an epoch, and this algorithm does not say how long an epoch "
            "is; set run.validate_every to a number of steps"
        )
    steps = max(1, round(share * run_length.epoch / run_length.rows_per_step))
    resolved = run.model_copy(update={"validate_every": steps})
    fault = resolved.find_unknown_best()
    if fault is not None:
        raise InputError(f"run.validate_every={share:g} of an epoch is every {steps} steps, and run.{fault}")
    return resolved
