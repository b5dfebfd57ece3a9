"""`lockstep train`: runs a resolved recipe to a finished run folder."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from lockstep.algorithms.base import Algorithm
from lockstep.algorithms.columns import read_columns
from lockstep.algorithms.exactness import decide_exact
from lockstep.algorithms.rows import DataFiles, data_files
from lockstep.cluster.placement import plan_placement
from lockstep.cluster.specs import require_sampler
from lockstep.cluster.worker_proxy import WorkerDied
from lockstep.cluster.workers import WorkerPool, open_worker_pool
from lockstep.config.hub import fetch_names
from lockstep.config.loading import LoadedRecipe
from lockstep.config.trust import note_run_here
from lockstep.core import exit_codes
from lockstep.core.errors import NothingTrainedError
from lockstep.models.device import keep_fp32, resolve_device
from lockstep.models.export import copy_frame
from lockstep.models.source import ModelSource, describe_template, open_source, scratch_model
from lockstep.report.alarms import find_alarms
from lockstep.report.log import read_metrics
from lockstep.report.progress import RunProgress, show_progress
from lockstep.report.summary import PAGE, find_exit_code, has_trained, summarize_run
from lockstep.run.callbacks import OnStep
from lockstep.run.checkpoint.export import export_checkpoint
from lockstep.run.dry_run.remarks import list_remarks
from lockstep.run.folder.files import (
    FRAME,
    adopt_folder,
    describe_shorter_run,
    find_changed_options,
    is_current,
    lock_folder,
    require_writable,
)
from lockstep.run.folder.identity import collect_identity
from lockstep.run.folder.logs import RunLogs
from lockstep.run.folder.opening import open_run
from lockstep.run.live_setup import LiveSetup, describe_step, require_lengths
from lockstep.run.session import TrainingSession, require_same_files
from lockstep.run.stop import StoppedRun, StopRequests
from lockstep.run.trackers.follow import build_views, track_run
from lockstep.run.trackers.view import RunFacts
from lockstep.system.command_line import format_command
from lockstep.system.disk import remove_copies
from lockstep.system.fault_policy import RetryCounter
from lockstep.system.printable import print_status, print_text
from lockstep.system.sums import SUMS, finish_run, require_unaltered


def train_recipe(
    loaded: LoadedRecipe,
    allow_changes: bool = False,
    deadline_s: float | None = None,
    on_step: OnStep | None = None,
) -> Path:
    """Runs a recipe to its end, from its newest checkpoint if there is one.

    Args:
        loaded: The recipe.
        allow_changes: Resume even if recipe, data, initial model or code differ from the
            checkpoint's.
        deadline_s: Time on `time.monotonic` to stop by, if this recipe is another recipe's warm
            start; None means `run.max_time_s` from now.
        on_step: The user's function, called after each step.

    Returns:
        The run's folder; `final/` in it is the trained model as a Hugging Face folder.

    Raises:
        StoppedRun: A stop was requested; the run was saved.
        ChangedError: The run's identity has changed, and that is not allowed.
        NothingTrainedError: The recipe to train first finished without learning anything.
    """
    if _run_recipe(loaded, allow_changes, deadline_s, on_step):
        print_text(f"{loaded.name} is finished: {loaded.run_folder}")
    print_text(summarize_run(loaded.run_folder))
    return loaded.run_folder


def _run_recipe(
    loaded: LoadedRecipe,
    allow_changes: bool,
    deadline_s: float | None,
    on_step: OnStep | None = None,
) -> bool:
    """Runs a recipe like `train_recipe`, without a summary.

    Returns True if it was already finished.
    """
    recipe = loaded.expect_recipe(Algorithm)
    if deadline_s is None and recipe.run.max_time_s is not None:
        deadline_s = time.monotonic() + recipe.run.max_time_s
    folder = loaded.run_folder
    # refuse early, before training a warm start; the next check does, too
    plan_placement(recipe)
    if recipe.inference is not None:
        require_sampler(recipe.inference.sampler, recipe.learner)
    require_writable(folder)
    changed = find_changed_options(loaded, allow_changes)
    if (folder / "final").exists() and not changed:
        if not allow_changes:
            require_same_files(loaded)
            require_unaltered(folder)
        # only in options that do not change the run, such as bounds for `lockstep check`
        if not is_current(loaded):
            with lock_folder(folder):
                adopt_folder(loaded, changed)
        write_missing_page(folder)
        return True
    loaded = read_columns(fetch_names(loaded))
    recipe = loaded.expect_recipe(Algorithm)
    shorter = None if folder.exists() else describe_shorter_run(loaded)
    with open_run(loaded, folder) as started, ExitStack() as open_:
        if (folder / "final").exists() and not changed:  # another process has just finished it
            return True
        views = build_views(recipe.trackers, RunFacts.from_recipe(loaded))
        files = data_files(recipe.data, folder)
        source = _open_initial_model(loaded, files, folder, allow_changes, deadline_s)
        copy_frame(Path(source.folder), folder / FRAME)
        progress = open_.enter_context(show_progress(f"{loaded.name} → {folder}"))
        for remark in filter(None, [shorter, *_list_first_remarks(recipe, source, files)]):
            progress.show_remark(remark)
        inexact = decide_exact(recipe, source.folder, progress.show_remark)
        logs = RunLogs(folder)
        tracker = open_.enter_context(track_run(logs, views, progress.show_note))

        def open_session(workers: WorkerPool) -> TrainingSession:
            require_lengths(recipe, source)
            setup = LiveSetup(recipe, folder, files, source, inexact, progress, workers)
            job = recipe.open(setup)
            setup.plan_updates(job.run_length.steps)
            started()
            (folder / SUMS).unlink(missing_ok=True)
            adopt_folder(loaded, changed)
            note_run_here(loaded.dump_options())
            progress.set_total(
                job.run_length.steps,
                f"{job.data}; each step: {describe_step(recipe, source, inexact)}",
            )
            rest = job.run_length.describe_rest()
            if rest is not None:
                progress.show_remark(rest)
            now = collect_identity(loaded, files.read_digests(), Path(source.folder))
            return TrainingSession(
                recipe.run, job, folder, now, allow_changes, tracker, progress, on_step
            )

        try:
            _run_with_restarts(open_session, recipe, progress, deadline_s)
        except StoppedRun as stopped:
            raise StoppedRun(f"{loaded.name} {stopped}", stopped.code) from None
        for sentence in finish_run(folder, logs.list_digests(), partial(export_checkpoint, folder)):
            progress.show_note(sentence)
        with progress.phase("report"):
            write_page(folder, progress.show_note)
    return False


def _list_first_remarks(recipe: Algorithm, source: ModelSource, files: DataFiles) -> list[str]:
    """Remarks for the log before the first step."""
    remarks = list[str]()
    if resolve_device(recipe.learner.device).type == "cuda":
        remarks.append(keep_fp32())
    remark = describe_template(source, recipe.data)
    if remark is not None:
        remarks.append(remark)
    return [*remarks, *list_remarks(recipe, files)]


def judge_finished(folder: Path) -> int:
    """The exit code of a finished run: whether sampler and learner agreed as promised.

    Raises:
        NothingTrainedError: No step learned anything.
    """
    code = find_exit_code(folder)
    if code == exit_codes.INCONCLUSIVE:
        require_trained(folder)
    return code


def require_trained(folder: Path) -> None:
    """Raises NothingTrainedError if no step of a finished run learned anything."""
    sentence = describe_nothing_trained(folder)
    if sentence is not None:
        raise NothingTrainedError(sentence)


def describe_nothing_trained(folder: Path) -> str | None:
    """Describes a finished run in which no step learned anything; None for all others."""
    final = folder / "final"
    if has_trained(folder) or not final.is_dir():
        return None
    first = {alarm.metric: alarm.sentence for alarm in reversed(find_alarms(read_metrics(folder)))}
    causes = "; ".join(reversed(first.values())) or (
        "every gradient was 0 (such as from equal rewards) or overflowed; read samples.jsonl"
    )
    return (
        f"{folder} is finished, but no step trained on anything: {final} learned nothing because "
        f"{causes}"
    )


def _run_with_restarts(
    open_session: Callable[[WorkerPool], TrainingSession],
    recipe: Algorithm,
    progress: RunProgress,
    deadline_s: float | None,
) -> None:
    """Runs to the end; after losing a worker, restarts with new ones from the newest checkpoint.

    Args:
        open_session: Prepares the run with workers.
        recipe: The cluster and the number of restarts.
        progress: Reports to the user.
        deadline_s: Time on `time.monotonic`; None means no deadline.

    Raises:
        WorkerDied: Workers are lost too often, or before the run starts.
    """
    restarts = RetryCounter("worker", progress.show_note, recipe.cluster.max_restarts)
    while (lost := _run_until_lost(open_session, recipe, progress, deadline_s)) is not None:
        gc.collect()  # free this process's learners on the device before opening new ones
        if not restarts.wait_for_retry(lost):
            raise WorkerDied(
                f"{lost}; the run is not restarted because cluster.max_restarts={restarts.limit}"
            )


def _run_until_lost(
    open_session: Callable[[WorkerPool], TrainingSession],
    recipe: Algorithm,
    progress: RunProgress,
    deadline_s: float | None,
) -> str | None:
    """Runs with new workers; returns how one of them was lost, or None at the end of the run."""
    ranks = recipe.learner.parallel.ranks
    sampler = None if recipe.inference is None else recipe.inference.sampler
    with open_worker_pool(recipe.cluster, recipe.learner, progress, ranks, sampler) as workers:
        session = open_session(workers)
        try:
            session.run_to_end(StopRequests(deadline_s))
        except WorkerDied as error:
            return str(error)
    return None


def _open_initial_model(
    loaded: LoadedRecipe,
    files: DataFiles,
    folder: Path,
    allow_changes: bool,
    deadline_s: float | None,
) -> ModelSource:
    """The initial model; trained or built first if the recipe requires it."""
    recipe = loaded.training_recipe
    first = loaded.warm_start
    if first is None:
        if recipe.model.scratch is not None:
            return open_source(scratch_model(recipe, files.demonstrations, folder / FRAME))
        return open_source(str(recipe.model.path))
    name = loaded.name
    final = first.run_folder / "final"
    if not find_changed_options(first, allow_changes) and final.exists():
        if not allow_changes:
            require_same_files(first)
            require_unaltered(first.run_folder)
        require_trained(first.run_folder)
        write_missing_page(first.run_folder)
        print_status(f"{name} starts from {final}, trained earlier")
        return open_source(final)
    print_status(f"stage 1 of 2: {first.name}; {name} starts from its model")
    _run_recipe(first, allow_changes, deadline_s)
    require_trained(first.run_folder)
    print_status(f"stage 1 of 2 is done: {final}\nstage 2 of 2: {name}")
    return open_source(final)


def write_missing_page(folder: Path) -> None:
    """Writes the report of a finished run whose process was killed before writing it."""
    remove_copies(folder / PAGE)
    if not (folder / PAGE).is_file():
        write_page(folder, print_status)


def write_page(folder: Path, note: Callable[[str], None]) -> None:
    """Writes the report; an error is only a note, because the run and its model are finished.

    Args:
        folder: Folder of the run.
        note: Shows the user a permanent line.
    """
    try:
        # imported here, because its dependencies may be missing
        from lockstep.report.html import write_report

        write_report([folder], folder / PAGE)
    except Exception as error:
        note(
            f"the run is complete, but its report was not written: {error}; to retry: "
            f"`{format_command('report', folder)}`"
        )
