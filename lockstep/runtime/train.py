"""`lockstep train`: from a resolved recipe to a finished run folder."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

from lockstep.config import Loaded
from lockstep.models.export import copy_frame
from lockstep.recipe import Run
from lockstep.report.summary import summary
from lockstep.runtime import prepare
from lockstep.runtime.checkpoint import Checkpoints
from lockstep.runtime.equal_rewards import EqualRewards
from lockstep.runtime.export import export
from lockstep.runtime.faults import kept
from lockstep.runtime.footprint import Footprint
from lockstep.runtime.hooks import Hooks
from lockstep.runtime.identity import ChangedError, Identity, differences, identity
from lockstep.runtime.jobs import Job, Place, job_of
from lockstep.runtime.loop import Start, loop
from lockstep.runtime.prepare import DataFiles, Source
from lockstep.runtime.progress import Progress, progress
from lockstep.runtime.saver import Saver
from lockstep.runtime.stop import Stop, heeding_signals
from lockstep.runtime.track import Logs
from lockstep.runtime.trackers.run import RunTracker, tracked, views_of
from lockstep.runtime.trackers.view import Facts


def train(loaded: Loaded, allow_changes: bool = False, deadline_s: float | None = None) -> Path:
    """Runs a recipe to its end, from its newest checkpoint where there is one.

    Args:
        loaded: The recipe.
        allow_changes: Go on even where recipe, data, first model or code are not those of the checkpoint.
        deadline_s: On `time.monotonic`, for a recipe that another one trains first; None: `run.max_time_s` from now.

    Returns:
        The run's folder; `final/` in it is the trained model as a Hugging Face folder.

    Raises:
        Stopped: If the run was asked to end before its end. It was saved.
        ChangedError: If something is not what it was, and that is not allowed.
    """
    recipe = loaded.training
    if deadline_s is None and recipe.run.max_time_s is not None:
        deadline_s = time.monotonic() + recipe.run.max_time_s
    before = Footprint.before(loaded.run_folder)
    folder = prepare.run_folder(loaded, allow_changes)
    if (folder / "final").exists():
        print(f"{loaded.name} is finished: {folder}\n{summary(folder)}")
        return folder
    with prepare.locked(folder), before.restored_on_failure() as started, ExitStack() as workers:
        views = views_of(recipe.trackers, Facts.of(loaded, folder))
        files = prepare.data_files(recipe.data, folder)
        source = _source(loaded, files, folder, allow_changes, deadline_s)
        copy_frame(Path(source.folder), folder / prepare.FRAME)
        shown = workers.enter_context(progress(f"{loaded.name} → {folder}"))
        tracker = workers.enter_context(tracked(Logs(folder), views, shown.note))
        job = job_of(recipe, Place(files, source, shown, workers))
        started()
        shown.total(job.extent.steps, job.arithmetic)
        now = identity(loaded, files.digests(), Path(source.folder))
        _run(recipe.run, job, folder, tracker, now, allow_changes, shown, Stop(deadline_s))
        export(folder, folder / "final")
    print(summary(folder))
    return folder


def _source(loaded: Loaded, files: DataFiles, folder: Path, allow_changes: bool, deadline_s: float | None) -> Source:
    """The model to begin with; trained first, or built first, where the recipe says so."""
    recipe, first = loaded.training, loaded.warm_start
    if first is not None:
        return prepare.open_source(train(first, allow_changes, deadline_s) / "final")
    if recipe.model.scratch is not None:
        return prepare.open_source(prepare.scratch_model(recipe, files.train, folder / prepare.FRAME))
    return prepare.open_source(str(recipe.model.path))


def _run(
    run: Run,
    job: Job,
    folder: Path,
    tracker: RunTracker,
    now: Identity,
    allow_changes: bool,
    shown: Progress,
    stop: Stop,
) -> None:
    best = 0 if run.best is None else run.best.count
    checkpoints = Checkpoints(folder / "checkpoints", run.keep, best)
    start = _restored(job, checkpoints, now, allow_changes, shown)
    tracker.rewind(start.step if start.step else -1)
    job.resumed(start.step)
    with Saver(checkpoints, job.learners) as saver:
        hooks = Hooks(run, job, tracker, saver, shown, now)
        if job.validate is not None and start.step == 0:
            hooks.validate(0)
        with heeding_signals(stop, shown.note):
            step = kept(job.step, folder / "faults")
            loop(step, start, job.extent, shown, [hooks.all, EqualRewards(shown.note)], stop)


def _restored(job: Job, checkpoints: Checkpoints, now: Identity, allow_changes: bool, shown: Progress) -> Start:
    """Brings the learners to the newest checkpoint."""
    newest = checkpoints.latest(shown.note)
    if newest is None:
        return Start()
    changed = differences(newest.state["identity"], now)
    if changed and not allow_changes:
        raise ChangedError(
            f"{newest.folder} was made with something else:\n  " + "\n  ".join(changed) + "\nput it back as it was, "
            "start another run by run.folder, or go on with what is now by --allow-changes"
        )
    for line in changed:
        shown.note(f"goes on although {line}")
    for name, learner in job.learners.items():
        learner.load(newest.folder / name)
    shown.note(f"continues after step {newest.step}, the newest checkpoint")
    return Start(newest.step, int(newest.state["position"]))
