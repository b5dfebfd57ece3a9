"""A session: one process's part of a run, from the newest checkpoint to the end or a stop.

After each step it logs, warns, validates, saves, and calls the user's function.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError

from lockstep.algorithms.job import Job, StepEvent
from lockstep.algorithms.rows import data_files
from lockstep.cluster.sampler_pool import SamplerLost
from lockstep.config import RunSection
from lockstep.config.loading import LoadedRecipe
from lockstep.config.model_recipe import find_weights_folder
from lockstep.core.borders import NotFiniteError
from lockstep.core.errors import InputError
from lockstep.models.digests import model_files
from lockstep.monitor.agreement import DisagreementError
from lockstep.report.alarms import LiveAlarms
from lockstep.report.certificate import CERTIFICATE
from lockstep.report.held_out import describe_validation
from lockstep.report.log import TIMINGS, read_metrics, suggest_metric
from lockstep.report.progress import RunProgress
from lockstep.run.callbacks import OnStep
from lockstep.run.checkpoint.checkpoints import CheckpointStore, VerifiedCheckpoint
from lockstep.run.checkpoint.saver import CheckpointSaver
from lockstep.run.folder.certificate import write_certificate
from lockstep.run.folder.identity import ChangedError, RunIdentity, collect_inputs, list_differences
from lockstep.run.loop import StartPoint, run_steps
from lockstep.run.stop import StopRequests, stop_on_signals
from lockstep.run.trackers.follow import LogTracker
from lockstep.system.command_line import format_command
from lockstep.system.records import describe_first_error
from lockstep.system.sums import find_altered_beginnings


class _SavedState(BaseModel):
    """A checkpoint's state without the learners', see `TrainingSession._build_checkpoint_state`."""

    model_config = ConfigDict(strict=True)
    position: NonNegativeInt
    identity: dict[str, Any]
    agreement: dict[str, Any] | None
    logs: dict[str, dict[str, int | str]]


def read_state(checkpoint: VerifiedCheckpoint) -> _SavedState:
    """Reads the state of a checkpoint; raises InputError if a different program wrote it."""
    try:
        return _SavedState.model_validate(checkpoint.state)
    except ValidationError as error:
        raise InputError(
            f"{checkpoint.folder}/manifest.json was saved by a different version of Lockstep "
            f"({describe_first_error(error)}); resume with that version, or set run.folder to "
            "start a new "
            "run"
        ) from None


class TrainingSession:
    """A job, its folder and its logs, ready to run.

    Args:
        options: The section `run`.
        job: The job to run.
        folder: Folder of the run.
        identity: Everything that the results depend on now, see `lockstep.run.folder.identity`.
        allow_changes: Resume even if the identity has changed.
        tracker: The logs, and the trackers that show them.
        progress: Reports to the user.
        on_step: The user's function.
    """

    def __init__(
        self,
        options: RunSection,
        job: Job,
        folder: Path,
        identity: RunIdentity,
        allow_changes: bool,
        tracker: LogTracker,
        progress: RunProgress,
        on_step: OnStep | None,
    ) -> None:
        self._options = options
        self._job = job
        self._folder = folder
        self._identity = identity
        self._allow_changes = allow_changes
        self._tracker = tracker
        self._logs = tracker.logs
        self._progress = progress
        self._on_step = on_step
        self._alarms = LiveAlarms(progress.show_note)
        best = 0 if options.best is None else options.best.count
        self._checkpoints = CheckpointStore(
            folder / "checkpoints", options.keep, best, progress.show_note
        )
        self._saver = CheckpointSaver(self._checkpoints, job.state)
        self._validated = list[float]()

    def run_to_end(self, stop: StopRequests) -> None:
        """Runs the job to its end.

        Raises:
            StoppedRun: `stop` ended it early; it was saved.
            ChangedError: The identity has changed, and that is not allowed.
        """
        job = self._job
        progress = self._progress
        start = self._restore_newest()
        self._tracker.rewind_to(start.step if start.step else -1)
        for row in read_metrics(self._folder):
            self._note_validation(row)
        with self._saver:
            if job.validate is not None and start.step == 0:
                self._call_user_function(0, self._validate_policy(0))
            if job.run_length.is_over(0, 0):
                self._saver.begin_checkpoint(0, self._build_checkpoint_state(0))
            if self._explain_early_end() is not None:  # killed after its last checkpoint
                return
            with stop_on_signals(stop, progress.show_note):
                run_steps(
                    job.step,
                    start,
                    job.run_length,
                    progress,
                    self._end_step,
                    stop,
                    self._guard_step,
                )

    def _note_validation(self, values: Mapping[str, float]) -> None:
        """Notes the value of `run.best.metric`, if it is among the values."""
        best = self._options.best
        if best is not None and best.metric in values:
            self._validated.append(values[best.metric])

    def _explain_early_end(self) -> str | None:
        """Returns the reason to finish the run early, by `run.best.patience`; None: continue."""
        best = self._options.best
        if best is None or not best.has_stalled(self._validated):
            return None
        return f"{best.metric} has not improved in {best.patience} validations"

    def _end_step(self, event: StepEvent) -> bool:
        """Logs a step, and validates and saves if due; returns True if the run is finished."""
        step = event.step
        every = self._options.validate_every
        is_due = event.leaving or step % self._options.save_every == 0
        if is_due:
            self._write_certificate(step)
        self._logs.add_metrics(step, event.values)
        self._logs.add_samples(step, event.result.samples)
        self._alarms.add_step(step, event.values)
        if self._job.validate is not None and (event.finished or (every and step % every == 0)):
            with self._save_if_lost(step, event.result.position):
                event.values.update(self._validate_policy(step))
            stalled = self._explain_early_end()
            if stalled is not None and not event.finished:
                is_due = True
                event = replace(event, finished=True, leaving=True)
                self._write_certificate(step)
                export = format_command("export", self._folder, "FOLDER", "--checkpoint", "best")
                self._progress.show_note(
                    f"finished after step {step}: {stalled}; for the best checkpoint: `{export}`"
                )
        with self._progress.phase("save"):
            if is_due:
                self._logs.sync_to_disk()
                self._saver.begin_checkpoint(
                    step,
                    self._build_checkpoint_state(event.result.position),
                    self._score_policy(event),
                )
            self._saver.advance_checkpoint(wait=event.leaving)
        self._call_user_function(step, event.values)
        self._logs.add_timings(step, self._progress.take_timings())
        self._tracker.catch_up()
        return event.finished

    def _write_certificate(self, step: int) -> None:
        """Writes the certificate before the run is saved, so that a kill in between leaves no
        outdated one.
        """
        if self._job.agreement is not None:
            write_certificate(
                self._folder / CERTIFICATE, self._job.agreement.certificate, {"step": step}
            )

    def _call_user_function(self, step: int, values: Mapping[str, float]) -> None:
        """Calls the user's function."""
        if self._on_step is not None:
            self._on_step(step, values)

    def _validate_policy(self, step: int) -> dict[str, float]:
        """Validates the policy on held-out rows, and logs the metrics."""
        assert self._job.validate is not None, "called only with held-out rows"
        with self._progress.phase("validate"), _name_step_in_error(f"validation after step {step}"):
            validation = self._job.validate(step)
            values = validation.metrics.floats()
        if values:
            self._logs.add_metrics(step, values)
            self._note_validation(values)
        if validation.samples:
            self._logs.add_samples(step, validation.samples)
        text = describe_validation(step, values)
        if text is not None:
            self._progress.show_note(text)
        return values

    @contextmanager
    def _guard_step(self, step: int, position: int) -> Iterator[None]:
        """Saves the run as before the step if its sampler is lost; numeric errors name the step."""
        with _name_step_in_error(f"step {step + 1}"), self._save_if_lost(step, position):
            yield

    @contextmanager
    def _save_if_lost(self, step: int, position: int) -> Iterator[None]:
        """Saves the run as after `step` if a sampler is lost or disagrees in the block.

        Every step generates before it trains, so the learners have not changed since.

        Raises:
            SamplerLost: From the block; the message adds that the run was saved.
            DisagreementError: From the block, with the same addition; its metrics are logged.
        """
        saved = f"the run was saved after step {step}"
        try:
            yield
        except SamplerLost as error:
            self._save_now(step, position)
            raise SamplerLost(f"{error}; {saved}") from error
        except DisagreementError as error:
            self._logs.add_metrics(step + 1, error.metrics.floats())
            self._save_now(step, position)
            raise DisagreementError(
                f"{error}; {saved}; rerun the command to resume", error.metrics
            ) from error

    def _save_now(self, step: int, position: int) -> None:
        self._logs.sync_to_disk()
        self._saver.begin_checkpoint(step, self._build_checkpoint_state(position))
        self._saver.advance_checkpoint(wait=True)

    def _build_checkpoint_state(self, position: int) -> dict[str, Any]:
        """A checkpoint's state without the learners'; holds no times, so that equal runs match."""
        if self._job.agreement is None:
            agreement = None
        else:
            agreement = self._job.agreement.dump_state()
        logs = {name: own for name, own in self._logs.list_digests().items() if name != TIMINGS}
        return {
            "position": position,
            "identity": self._identity,
            "agreement": agreement,
            "logs": logs,
        }

    def _score_policy(self, event: StepEvent) -> float | None:
        """Score of the policy by `run.best`, higher is better; None if not configured or unknown.

        Raises:
            InputError: The metric is not logged. At the end of a run this is only a note, because
                the last checkpoint matters more.
        """
        best = self._options.best
        if best is None:
            return None
        value = event.values.get(best.metric)
        if value is not None:
            return None if math.isnan(value) else best.compute_score(value)
        message = f"run.best.metric: this run does not log {best.metric} at checkpoints; "
        message += suggest_metric(best.metric, event.values)
        if not event.leaving:
            raise InputError(message)
        if event.finished:  # otherwise it stopped between two validations
            self._progress.show_note(message)
        return None

    def _restore_newest(self) -> StartPoint:
        """Restores the learners from the newest checkpoint."""
        self._checkpoints.remove_partial()
        newest = self._checkpoints.read_latest()
        if newest is None:
            # The second checkpoint begins only when the first is complete.
            logged = max((int(row["step"]) for row in read_metrics(self._folder)), default=0)
            if logged > 2 * self._options.save_every:
                text = (
                    f"{self._folder} has logged {logged} steps, and {self._checkpoints.folder} has "
                    "no checkpoints for them"
                )
                if not self._allow_changes:
                    raise InputError(
                        f"{text}; restore them (is the disk mounted?), choose a different "
                        "run.folder, or start over by --allow-changes"
                    )
                self._progress.show_note(f"{text}; the run starts over")
            return StartPoint()
        state = read_state(newest)
        changed = list_differences(state.identity, self._identity)
        changed += find_altered_beginnings(self._folder, state.logs)
        if changed and not self._allow_changes:
            diff = "\n  ".join(changed)
            raise ChangedError(
                f"{newest.folder} was saved with different inputs:\n  {diff}\nrestore them, set "
                "run.folder to start a new run, or continue with the current inputs by "
                "--allow-changes"
            )
        for line in changed:
            self._progress.show_note(f"resumes although {line}")
        for name, learner in self._job.state.items():
            learner.load(newest.folder / name)
        # None if nothing samples
        if self._job.agreement is not None and state.agreement is not None:
            self._job.agreement.restore_state(state.agreement)
        self._progress.show_note(f"resumes after step {newest.step}, the newest valid checkpoint")
        return StartPoint(newest.step, state.position)


@contextmanager
def _name_step_in_error(during: str) -> Iterator[None]:
    """Adds the step or validation to an error about a number that is not finite."""
    try:
        yield
    except NotFiniteError as error:
        raise NotFiniteError(f"{during}, {error}", error.batch) from error


def require_same_files(loaded: LoadedRecipe) -> None:
    """Raises ChangedError if rows, models or code have changed since a run finished.

    Missing files are not compared, and neither are Hub names, whose commit the run keeps.
    """
    folder = loaded.run_folder
    newest = CheckpointStore(folder / "checkpoints", keep=1).newest_unverified()
    if newest is None:
        return
    try:
        noted = read_state(newest).identity
    except InputError:  # from a different version, or damaged: the run's inputs are unknown
        return
    recipe = loaded.training_recipe
    digests = RunIdentity()
    with suppress(OSError, InputError):
        digests |= collect_inputs(loaded, {}, None)
    with suppress(OSError, InputError):
        if recipe.data.task is None:
            rows = data_files(recipe.data, loaded.run_folder).read_digests()
            digests |= {f"data.{name}": own for name, own in rows.items()}
    with suppress(OSError, InputError):
        if recipe.model.path is not None:
            digests |= model_files(find_weights_folder(str(recipe.model.path)))
    now = RunIdentity()
    then = RunIdentity()
    for name, own in digests.items():
        if name in noted and not name.startswith("recipe."):
            now[name] = own
            then[name] = noted[name]
    changed = list_differences(then, now)
    if changed:
        raise ChangedError(
            f"{folder} is finished, and was trained with different inputs:\n  "
            + "\n  ".join(changed)
            + (
                "\nrestore them, choose a different run.folder, remove this one, or keep it by "
                "--allow-changes"
            )
        )
