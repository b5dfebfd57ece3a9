"""A session, one process's part of a run: from the newest checkpoint to the end, or until it is stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError

from lockstep.algorithms.job import Job, StepEvent
from lockstep.algorithms.rows import data_files
from lockstep.config import RunSection
from lockstep.config.loading import Loaded
from lockstep.config.model_recipe import weights_of
from lockstep.errors import InputError
from lockstep.models.digests import model_files
from lockstep.records import first_fault
from lockstep.report.log import read_metrics
from lockstep.report.progress import Progress
from lockstep.run.callbacks import Callbacks
from lockstep.run.checkpoint.checkpoints import Checkpoint, Checkpoints
from lockstep.run.checkpoint.saver import Saver
from lockstep.run.folder.certificate import write_run_certificate
from lockstep.run.folder.faults import keep_fault
from lockstep.run.folder.identity import ChangedError, Identity, differences, inputs
from lockstep.run.hooks import Hooks
from lockstep.run.loop import Start, loop
from lockstep.run.reward_alarms import EqualRewards, RewardAlarms
from lockstep.run.stop import Stop, heed_signals
from lockstep.run.trackers.run import RunTracker
from lockstep.sums import find_altered_beginnings


class _SavedState(BaseModel):
    """The state of a checkpoint besides the learners', as `Hooks.state` makes it."""

    model_config = ConfigDict(strict=True)
    position: NonNegativeInt
    identity: dict[str, Any]
    agreement: dict[str, Any] | None
    logs: dict[str, dict[str, int | str]] = {}  # older versions noted none


def read_state(checkpoint: Checkpoint) -> _SavedState:
    """Reads the state of a checkpoint; raises InputError where another program wrote it."""
    try:
        return _SavedState.model_validate(checkpoint.state)
    except ValidationError as error:
        raise InputError(
            f"{checkpoint.folder}/manifest.json has another state than this version of Lockstep saves "
            f"({first_fault(error)}); resume with the version that made it, or start another run by run.folder"
        ) from None


@dataclass(frozen=True)
class Session:
    """A job, its folder and its logs, ready to run.

    Attributes:
        options: The section `run`.
        job: The job to run.
        folder: Folder of the run.
        identity: All that the results depend on now, see `lockstep.run.folder.identity`.
        allow_changes: Resume even if the identity has changed.
        tracker: Writes the logs.
        progress: Reports to the user.
        callbacks: Functions of the user's program.
    """

    options: RunSection
    job: Job
    folder: Path
    identity: Identity
    allow_changes: bool
    tracker: RunTracker
    progress: Progress
    callbacks: Callbacks

    def run(self, stop: Stop) -> None:
        """Runs the job to its end.

        Raises:
            Stopped: If `stop` ended it early; it was saved.
            ChangedError: If the identity has changed, and that is not allowed.
        """
        job, progress = self.job, self.progress
        checkpoints = Checkpoints(
            self.folder / "checkpoints",
            self.options.keep,
            0 if self.options.best is None else self.options.best.count,
            progress.note,
        )
        start = self._restore(checkpoints)
        self.tracker.rewind(start.step if start.step else -1)
        with Saver(checkpoints, job.state) as saver:
            hooks = Hooks(self.options, job, self.folder, self.tracker, saver, progress, self.callbacks, self.identity)
            if job.validate is not None and start.step == 0:
                hooks.validate(0)
            if job.run_length.over(0, 0):
                saver.begin(0, hooks.state(0))
            with heed_signals(stop, progress.note):
                warnings = EqualRewards(progress.note), RewardAlarms(progress.note)
                every = [self._certify, hooks.all, *warnings, *job.hooks]
                loop(job.step, start, job.run_length, progress, every, stop, partial(self._guard, hooks))

    def _certify(self, event: StepEvent) -> None:
        """Writes the certificate before the run is saved, so that a kill between the two does not leave an old one."""
        agreement = self.job.agreement
        if agreement is not None and (event.leaving or event.step % self.options.save_every == 0):
            write_run_certificate(self.folder, event.step, agreement.certificate)

    @contextmanager
    def _guard(self, hooks: Hooks, step: int, position: int) -> Iterator[None]:
        """Keeps a faulty batch of a step, and saves the run as it was before the step if its sampler is lost."""
        number = step + 1
        where, context = self.folder / "faults" / f"step_{number:06d}", {"step": number, "position": position}
        with keep_fault(where, f"step {number}", context), hooks.save_if_lost(step, position):
            yield

    def _restore(self, checkpoints: Checkpoints) -> Start:
        """Restores the learners from the newest checkpoint."""
        checkpoints.clear()
        newest = checkpoints.latest()
        if newest is None:
            self._require_unsaved(checkpoints)
            return Start()
        state = read_state(newest)
        changed = differences(state.identity, self.identity)
        if changed and not self.allow_changes:
            diff = "\n  ".join(changed)
            raise ChangedError(
                f"{newest.folder} was made with something else:\n  {diff}\nput it back as it was, start another run by "
                "run.folder, or continue with what is there now by --allow-changes"
            )
        altered = list(find_altered_beginnings(self.folder, state.logs))
        if altered and not self.allow_changes:
            raise ChangedError(
                f"{' and '.join(altered)}, up to step {newest.step}; put it back, start another run by run.folder, or "
                "continue with what is there now by --allow-changes"
            )
        for line in [*changed, *altered]:
            self.progress.note(f"resumes although {line}")
        for name, learner in self.job.state.items():
            learner.load(newest.folder / name)
        if self.job.agreement is not None and state.agreement is not None:  # None where nothing samples
            self.job.agreement.restore(state.agreement)
        self.progress.note(f"continues after step {newest.step}, the newest whole checkpoint")
        return Start(newest.step, state.position)

    def _require_unsaved(self, checkpoints: Checkpoints) -> None:
        """Raises InputError where the logs reach further than a run can come without a checkpoint.

        A second checkpoint begins, after its step is logged, only once the first is whole.
        """
        logged = max((int(row["step"]) for row in read_metrics(self.folder)), default=0)
        if logged > 2 * self.options.save_every:
            text = f"{self.folder} has logged {logged} steps, and {checkpoints.folder} holds no checkpoint of them"
            if not self.allow_changes:
                raise InputError(
                    f"{text}; put them back (is the disk mounted?), choose another run.folder, or start from the "
                    "beginning by --allow-changes"
                )
            self.progress.note(f"{text}; the run starts from the beginning")


def require_same_files(loaded: Loaded) -> None:
    """Raises ChangedError where rows, models or code have changed since a run was finished.

    Files that are no longer there, and names of the hub, whose commit the run keeps, are not compared.
    """
    folder = loaded.run_folder
    newest = Checkpoints(folder / "checkpoints", keep=1).newest_unverified()
    if newest is None:
        return
    try:
        noted = read_state(newest).identity
    except InputError:  # of another version, or damaged: it does not say what the run was made of
        return
    now = _read_files(loaded)
    then = {name: noted[name] for name in now if name in noted}
    changed = differences(then, {name: now[name] for name in then})
    if changed:
        raise ChangedError(
            f"{folder} is finished, and was made with something else:\n  " + "\n  ".join(changed) + "\nput it back as "
            "it was, choose another run.folder, remove this one, or leave it as it is by --allow-changes"
        )


def _read_files(loaded: Loaded) -> Identity:
    """The digests of the files that a recipe names, as far as they are there."""
    recipe, found = loaded.training, Identity()
    readers: list[Callable[[], Identity]] = [lambda: inputs(loaded, {}, None)]
    if recipe.data.task is None:
        readers.append(lambda: _read_rows(loaded))
    if recipe.model.path is not None:
        readers.append(lambda: dict(model_files(weights_of(str(recipe.model.path)))))
    for read in readers:
        with suppress(OSError, InputError):
            found |= read()
    return {name: own for name, own in found.items() if not name.startswith("recipe.")}


def _read_rows(loaded: Loaded) -> Identity:
    files = data_files(loaded.training.data, loaded.run_folder)
    return {f"data.{name}": own for name, own in files.digests().items()}
