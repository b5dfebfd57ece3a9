"""`lockstep train`: from a resolved recipe to a finished run folder."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from lockstep.algorithms.step import StepResult
from lockstep.config import Loaded
from lockstep.metrics import Metrics
from lockstep.models.export import export
from lockstep.recipe import Common
from lockstep.report.summary import summary
from lockstep.runtime import prepare
from lockstep.runtime.checkpoint import Checkpoints
from lockstep.runtime.jobs import Job, Place, job_of
from lockstep.runtime.loop import Hook, Start, loop
from lockstep.runtime.prepare import DataFiles, Source
from lockstep.runtime.progress import Progress, progress
from lockstep.runtime.track import Tracker


def train(loaded: Loaded) -> Path:
    """Runs a recipe to its end, from its newest checkpoint where there is one.

    Returns:
        The run's folder; `final/` in it is the trained model as a Hugging Face folder.
    """
    recipe, folder = loaded.training, prepare.run_folder(loaded)
    if (folder / "final").exists():
        print(f"{loaded.name} is finished: {folder}\n{summary(folder)}")
        return folder
    with prepare.locked(folder), ExitStack() as workers:
        files = prepare.data_files(recipe.data, folder)
        source = _source(loaded, files, folder)
        shown = workers.enter_context(progress(f"{loaded.name} → {folder}"))
        job = job_of(recipe, Place(files, source, shown, workers))
        shown.total(job.extent.steps, job.arithmetic)
        _run(recipe, job, folder, shown)
        export(source.folder, job.learners["policy"].weights(), source.tokenizer, folder / "final")
    print(summary(folder))
    return folder


def _source(loaded: Loaded, files: DataFiles, folder: Path) -> Source:
    """The model to begin with; trained first, or built first, where the recipe says so."""
    recipe, first = loaded.training, loaded.warm_start
    if first is not None:
        return prepare.open_source(train(first) / "final")
    if recipe.model.scratch is not None:
        return prepare.open_source(prepare.scratch_model(recipe, files.train, folder / "initial"))
    return prepare.open_source(str(recipe.model.path))


def _run(recipe: Common, job: Job, folder: Path, shown: Progress) -> None:
    tracker, checkpoints = Tracker(folder), Checkpoints(folder / "checkpoints", recipe.run.keep)
    start = _restored(job, checkpoints)
    if start.step:
        shown.note(f"continues after step {start.step}, the newest checkpoint")
    tracker.rewind(start.step if start.step else -1)
    job.resumed(start.step)
    hooks: list[Hook] = [partial(_log, tracker), partial(_warn, shown)]
    if job.validate is not None:
        hooks.append(partial(_validate, job, recipe.run.validate_every, tracker, shown))
        if start.step == 0:
            _validated(0, job.validate, tracker, shown)
    hooks.append(partial(_save, job, recipe.run.save_every, checkpoints, shown))
    hooks.append(lambda step, result: tracker.timings(step, shown.take_timings()))
    loop(job.step, start, job.extent, shown, hooks)


def _restored(job: Job, checkpoints: Checkpoints) -> Start:
    newest = checkpoints.latest()
    if newest is None:
        return Start()
    for name, learner in job.learners.items():
        learner.load(newest.folder / name)
    return Start(newest.step, int(newest.state["position"]))


def _log(tracker: Tracker, step: int, result: StepResult) -> None:
    tracker.metrics(step, result.metrics.floats())
    tracker.samples(step, result.samples)


def _warn(shown: Progress, step: int, result: StepResult) -> None:
    trained = result.metrics.get("train/trained_tokens")
    if trained is not None and not trained.value():
        shown.note(
            f"step {step} trained on nothing: every response was taken out, because it had no verdict, was truncated "
            "at sampling.max_tokens (ppo.overlong_filtering), or was off the sampler (ppo.max_sequence_mismatch)"
        )


def _validate(job: Job, every: int, tracker: Tracker, shown: Progress, step: int, result: StepResult) -> None:
    last = job.extent.over(step, result.position)
    if job.validate is not None and (last or (every and step % every == 0)):
        _validated(step, job.validate, tracker, shown)


def _validated(step: int, validate: Callable[[], Metrics], tracker: Tracker, shown: Progress) -> None:
    with shown.phase("validate"):
        tracker.metrics(step, validate().floats())


def _save(job: Job, every: int, checkpoints: Checkpoints, shown: Progress, step: int, result: StepResult) -> None:
    if step % every and not job.extent.over(step, result.position):
        return

    def write(folder: Path) -> None:
        for name, learner in job.learners.items():
            learner.save(folder / name)

    with shown.phase("save"):
        checkpoints.save(step, write, {"position": result.position})
