"""`lockstep sweep`: one process of `lockstep train` for each combination of a grid, several at a time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from lockstep.config.loading import describe
from lockstep.config.user_code import is_in_program
from lockstep.core import exit_codes
from lockstep.core.errors import InputError
from lockstep.report.html import write_sweep_report
from lockstep.report.summary import PAGE
from lockstep.report.sweeps import summarize_sweep
from lockstep.run.checkpoint.checkpoints import Checkpoints
from lockstep.run.folder.files import lock_folder
from lockstep.run.stop import Stop, Stopped, end_with_code, heed_signals
from lockstep.run.train import judge_finished
from lockstep.sweeps.plan import PlannedRun, SweepPlan
from lockstep.system.printable import print_text
from lockstep.system.process_defaults import ENDS_WITH, MOST_THREADS, THREADS, count_cores, read_given_threads
from lockstep.system.whole_files import write_changed

LOG = "sweep.log"
"""File in a run's folder with the output of its process."""

_POLL_S = 0.2
_STOPPED = (exit_codes.OUT_OF_TIME, exit_codes.HUNG_UP, exit_codes.INTERRUPTED, exit_codes.TERMINATED)


@dataclass
class SweepJob:
    """A run of a sweep.

    Attributes:
        run: The run.
        code: Exit code of its process, or of a run that was finished before; None: it waits or runs.
        process: Its process; None: it has not been started.
    """

    run: PlannedRun
    code: int | None = None
    process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        """The output of its process."""
        return self.run.folder / LOG

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.code is None

    @property
    def is_waiting(self) -> bool:
        return self.process is None and self.code is None

    @property
    def outcome(self) -> Literal["finished", "stopped", "failed"]:
        """The way it ended; stopped: early, and saved, because it was asked to."""
        if self.code == exit_codes.OK:
            return "finished"
        return "stopped" if self.code in _STOPPED else "failed"


@dataclass
class Runner:
    """Starts, watches and ends the runs of a sweep.

    Attributes:
        folder: The sweep's folder.
        jobs: All runs.
        most: Runs at a time.
        threads: Threads of each.
        asked: Why the sweep was asked to stop, and its exit code; None: it was not asked.
    """

    folder: Path
    jobs: Sequence[SweepJob]
    most: int
    threads: int
    asked: tuple[str, int] | None = field(default=None)

    def run(self, stop: Stop) -> None:
        """Runs all jobs that wait. A stop is forwarded once to those that run, and nothing is started after it.

        A second Ctrl-C, or a failure of the sweep itself, ends them at once; the same command resumes them.
        """
        try:
            while self._running() or (self.asked is None and any(job.is_waiting for job in self.jobs)):
                self._note_ends()
                if self.asked is None:
                    self._forward(stop)
                if self.asked is None:
                    self._start_next()
                time.sleep(_POLL_S)
        finally:
            for job in self._running():
                _kill(job)
                job.code = exit_codes.INTERRUPTED

    def _running(self) -> list[SweepJob]:
        return [job for job in self.jobs if job.is_running]

    def _note_ends(self) -> None:
        for job in self._running():
            assert job.process is not None
            code = job.process.poll()
            if code is not None:
                job.code = code if code >= 0 else 128 - code
                finished = sum(other.code == exit_codes.OK for other in self.jobs)
                note(f"{job.run.name} {job.outcome}, {finished} of {len(self.jobs)} are finished; {job.log}")

    def _forward(self, stop: Stop) -> None:
        """Asks runs to save and stop if the sweep was asked to."""
        self.asked = stop.check_after_step()
        for job in self._running() if self.asked is not None else ():
            assert job.process is not None
            job.process.send_signal(signal.SIGINT)

    def _start_next(self) -> None:
        while len(self._running()) < self.most:
            job = next_job(self.jobs)
            if job is None:
                return
            self._start(job)

    def _start(self, job: SweepJob) -> None:
        """Starts a run; if its process cannot be started it has failed, and the others go on."""
        loaded = job.run.loaded
        environment = {THREADS: str(self.threads), ENDS_WITH: str(os.getpid())}
        recipe = self.folder / "recipes" / job.run.name / f"{loaded.name}.yaml"
        verb = "resumes" if Checkpoints(job.run.folder / "checkpoints", keep=1).find() else "begins"
        note(f"{job.run.name} {verb}; {job.log}")
        try:
            write_changed(recipe, describe(loaded).encode())
            job.log.parent.mkdir(parents=True, exist_ok=True)
            with job.log.open("ab") as log:
                job.process = subprocess.Popen(
                    [sys.executable, "-m", "lockstep", "train", str(recipe)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **environment},
                    start_new_session=True,  # Ctrl-C reaches the sweep alone, which forwards it once
                )
        except OSError as error:
            job.code = exit_codes.CRASH
            note(f"{job.run.name} failed: it could not be started: {error}")


def next_job(jobs: Sequence[SweepJob]) -> SweepJob | None:
    """The first run that may start: one whose warm start is not being trained by another."""
    training = {_find_warm_start(job) for job in jobs if job.is_running} - {None}
    return next((job for job in jobs if job.is_waiting and _find_warm_start(job) not in training), None)


def _find_warm_start(job: SweepJob) -> Path | None:
    """Folder of the run that this one starts from, if it is not finished."""
    first = job.run.loaded.warm_start
    if first is None or (first.run_folder / "final").is_dir():
        return None
    return first.run_folder


def _kill(job: SweepJob) -> None:
    """Ends a run's process with all that it has started, and waits for it."""
    assert job.process is not None
    with suppress(ProcessLookupError):
        os.killpg(job.process.pid, signal.SIGKILL)
    job.process.wait()


def note(text: str) -> None:
    """Writes a line to standard error."""
    print_text(text, file=sys.stderr)


def share_cores(jobs: int) -> int:
    """Threads of each run: those of the environment, or a share of the cores."""
    return read_given_threads() or max(1, min(count_cores() // jobs, MOST_THREADS))


def run_sweep(plan: SweepPlan, jobs: int = 1) -> int:
    """Runs a sweep to its end, or resumes it; writes its report, and prints its table.

    Args:
        plan: The sweep.
        jobs: Runs at a time.

    Returns:
        0 if every run is finished; else the exit code of the first that failed.

    Raises:
        InputError: If its folder holds another sweep.
        Stopped: If it was asked to end early; every run was saved.
    """
    if jobs < 1:
        raise InputError(f"--jobs is {jobs}; at least one run at a time is needed")
    threads = plan.require_same() or share_cores(jobs)
    _require_files(plan)
    todo = [_look_up(run) for run in plan.runs]
    plan.folder.mkdir(parents=True, exist_ok=True)
    with lock_folder(plan.folder):
        plan.write(threads)
        note(f"{plan.folder}: {len(todo)} runs, {jobs} at a time, threads of each: {threads}")
        stop, runner = Stop(None), Runner(plan.folder, todo, jobs, threads)
        with heed_signals(stop, note):
            runner.run(stop)
        if any((run.folder / "recipe.yaml").is_file() for run in plan.runs):
            write_sweep_report(plan.folder, plan.folder / PAGE)
    return _finish(plan, runner)


def preview(plan: SweepPlan) -> str:
    """Describes the runs of `run_sweep`, and those that are finished; it raises the same."""
    plan.require_same()
    lines = [f"{run.folder}{', finished' if (run.folder / 'final').is_dir() else ''}" for run in plan.runs]
    return "\n".join([*lines, f"{len(lines)} runs"])


def _look_up(run: PlannedRun) -> SweepJob:
    """The job of a run, which may be finished since an earlier sweep."""
    if not (run.folder / "final").is_dir():
        return SweepJob(run)
    return SweepJob(run, end_with_code(lambda: judge_finished(run.folder)))


def _finish(plan: SweepPlan, runner: Runner) -> int:
    print_text(summarize_sweep(plan.folder))
    failed = [job for job in runner.jobs if not job.is_waiting and job.outcome == "failed"]
    for job in failed:
        note(f"{job.run.name} failed; {job.log}")
    if runner.asked is not None and any(job.is_waiting or job.outcome == "stopped" for job in runner.jobs):
        why, code = runner.asked
        raise Stopped(f"{plan.folder} stopped, because {why}; the same command resumes it", code)
    return next((job.code for job in runner.jobs if job.code), exit_codes.OK)


def _require_files(plan: SweepPlan) -> None:
    """Raises InputError if a run needs code of this program, which its process would not have."""
    for run in plan.runs:
        for option, value in run.options.items():
            if isinstance(value, str) and is_in_program(value):
                raise InputError(
                    f"{option.removeprefix('recipe.')} is a Python object of this program, and each run of a sweep is "
                    "a separate process; put it into a file: file.py:name"
                )
