"""`lockstep sweep`: runs the runs of a plan, as many at a time as there is room for, and sums them up."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from signal import SIGINT, Signals
from typing import Literal

import torch

from lockstep import exit_codes
from lockstep.config.loading import Loaded, describe
from lockstep.config.user_code import is_in_program
from lockstep.errors import InputError, LockstepError
from lockstep.printable import print_text
from lockstep.process_defaults import THREADS
from lockstep.report.html import write_sweep_report
from lockstep.report.summary import PAGE
from lockstep.run.ending import end_with_code
from lockstep.run.folder import lock_folder
from lockstep.run.stop import Stop, Stopped, heed_signals
from lockstep.run.train import judge_finished, train_to_code
from lockstep.sweeps import processes
from lockstep.sweeps.plan import PlannedRun, SweepPlan
from lockstep.sweeps.results import summarize
from lockstep.sweeps.room import Room, make_room
from lockstep.sweeps.show import SweepView, show_sweep
from lockstep.whole_files import write_changed

LOG = "sweep.log"
"""File in a run's folder with all that its process wrote."""

_POLL_S = 0.2

State = Literal["waiting", "running", "finished", "stopped", "failed"]


@dataclass
class SweepJob:
    """A run of a sweep on its way.

    Attributes:
        run: The run.
        state: How far it is.
        code: Exit code of its process; None: there was none in this sweep, or it still runs.
        process: Number of the process that runs it; 0: none does.
        slot: Number of its place in the room.
        since: When it was started, on `time.monotonic`.
        logged: Bytes that its log had then, of an earlier sweep.
        unstarted: The reason why no process could be started; empty: one was.
    """

    run: PlannedRun
    state: State = "waiting"
    code: int | None = None
    process: int = 0
    slot: int = -1
    since: float = 0.0
    logged: int = 0
    unstarted: str = ""

    @property
    def log(self) -> Path:
        """All that its process wrote."""
        return self.run.folder / LOG

    @property
    def sentence(self) -> str:
        """The reason why it failed: what its process said last."""
        if self.unstarted:
            return self.unstarted
        with suppress(OSError), self.log.open("rb") as file:
            file.seek(self.logged)
            lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
            said = [line for line in lines if line.startswith("lockstep: ")] or lines
            if said:
                return said[-1].removeprefix("lockstep: ")
        return f"its process ended with {self.code}"


@dataclass
class Runner:
    """Starts, watches and ends the runs of a sweep.

    Attributes:
        jobs: All runs.
        room: The slots that they run in.
        begin: Makes the work of a run's process.
        view: Shows them.
        asked: Why the sweep was asked to stop, and its exit code; None: it was not.
    """

    jobs: Sequence[SweepJob]
    room: Room
    begin: Callable[[Loaded], processes.Work]
    view: SweepView
    asked: tuple[str, int] | None = field(default=None)

    def run(self, stop: Stop) -> None:
        """Runs all that wait; a stop is passed on once to those that run, and nothing is started after it.

        Where the sweep itself fails, runs are asked to save, too, and waited for; a second Ctrl-C ends them at once.
        """
        try:
            while self._running() or (self.asked is None and self._waiting()):
                for job in self._reap():
                    self.view.show_end(job)
                if self.asked is None:
                    self._hand_on(stop)
                if self.asked is None:
                    self._fill()
                self.view.update()
                time.sleep(_POLL_S)
        except Exception:
            self._save_all()
            raise
        finally:  # only where it was interrupted again
            killed = self._running()
            for job in killed:
                processes.kill_group(job.process)
                self._end(job, exit_codes.INTERRUPTED)
            for job in killed:
                self.view.show_end(job)

    def _save_all(self) -> None:
        """Asks runs to save, and waits for them; nothing is shown, since to show may be what failed."""
        self._ask_to_stop()
        while self._running():
            self._reap()
            time.sleep(_POLL_S)

    def _running(self) -> list[SweepJob]:
        return [job for job in self.jobs if job.state == "running"]

    def _waiting(self) -> list[SweepJob]:
        return [job for job in self.jobs if job.state == "waiting"]

    def _reap(self) -> list[SweepJob]:
        """Notes which processes have ended, and returns their jobs."""
        running = self._running()
        for job in running:
            code = processes.find_ended(job.process)
            if code is not None:
                self._end(job, code)
        return [job for job in running if job.state != "running"]

    def _end(self, job: SweepJob, code: int) -> None:
        stopped = code == exit_codes.OUT_OF_TIME or (self.asked is not None and code >= exit_codes.HUNG_UP)
        job.state = "finished" if code == exit_codes.OK else "stopped" if stopped else "failed"
        job.code, job.process = code, 0

    def _hand_on(self, stop: Stop) -> None:
        self.asked = stop.check_after_step()
        if self.asked is not None:
            self._ask_to_stop()

    def _ask_to_stop(self) -> None:
        for job in self._running():
            processes.send(job.process, Signals(SIGINT))

    def _fill(self) -> None:
        """Starts runs in free slots; a run whose warm start another run is training waits without a slot."""
        for slot in set(range(len(self.room.slots))) - {job.slot for job in self._running()}:
            training = {_find_first_run(job) for job in self._running()} - {None}
            ready = [job for job in self._waiting() if _find_first_run(job) not in training]
            if ready:
                self._start(ready[0], slot)

    def _start(self, job: SweepJob, slot: int) -> None:
        """Starts a run; one whose process cannot be started has failed, and the others do not end."""
        job.slot, job.since = slot, time.monotonic()
        job.logged = job.log.stat().st_size if job.log.is_file() else 0
        self.view.show_start(job)
        environment = {**self.room.slots[slot], THREADS: str(self.room.threads)}
        try:
            job.process = processes.start(self.begin(job.run.loaded), job.log, environment)
        except (OSError, LockstepError) as error:
            job.state, job.unstarted = "failed", f"it could not be started: {error}"
            job.code = error.exit_code if isinstance(error, LockstepError) else exit_codes.CRASH
            self.view.show_end(job)
        else:
            job.state = "running"  # only now: its process has a number


def run_sweep(plan: SweepPlan, jobs: int | None) -> int:
    """Runs a sweep to its end, or resumes it; writes its report, and prints its table.

    Args:
        plan: The sweep.
        jobs: Runs at a time; None: as many as there is room for.

    Returns:
        0 where every run is finished; else the exit code of the first that failed.

    Raises:
        InputError: If its folder holds another sweep, or more runs at a time are asked for than GPUs have room for.
        Stopped: If it was asked to end early; every run was saved.
    """
    noted = plan.require_same()
    room = make_room(plan, jobs, None if noted is None else noted.threads)
    todo = [_look_up(run) for run in plan.runs]
    is_warm = not room.on_gpu and processes.can_fork()
    if not is_warm:
        _require_no_program(plan)
    plan.folder.mkdir(parents=True, exist_ok=True)
    with lock_folder(plan.folder):
        plan.write(room.threads)
        begin = partial(_work_in_fork, room.threads) if is_warm else partial(_work_in_program, plan.folder)
        asked = _run_jobs(plan, todo, room, begin)
        if any((run.folder / "recipe.yaml").is_file() for run in plan.runs):
            write_sweep_report(plan.folder, plan.folder / PAGE)
    return _finish(plan, todo, asked)


def preview(plan: SweepPlan, jobs: int | None) -> str:
    """Describes the runs of `run_sweep`, those that are finished, and how many at a time; it raises the same."""
    noted = plan.require_same()
    room = make_room(plan, jobs, None if noted is None else noted.threads)
    lines = [f"{run.folder}{', finished' if (run.folder / 'final').is_dir() else ''}" for run in plan.runs]
    return "\n".join([*lines, f"{len(lines)} runs, {room.sentence}"])


def _look_up(run: PlannedRun) -> SweepJob:
    """The job of a run that may be finished since an earlier sweep."""
    if not (run.folder / "final").is_dir():
        return SweepJob(run)
    code = end_with_code(lambda: judge_finished(run.folder))
    return SweepJob(run, "failed" if code else "finished", code)


def _run_jobs(
    plan: SweepPlan, jobs: list[SweepJob], room: Room, begin: Callable[[Loaded], processes.Work]
) -> tuple[str, int] | None:
    """Runs jobs; returns why and with which code it was asked to end early."""
    with show_sweep(f"{plan.folder}: {len(jobs)} runs, {room.sentence}", jobs) as view:
        stop, runner = Stop(None), Runner(jobs, room, begin, view)
        with heed_signals(stop, view.note):
            runner.run(stop)
    return runner.asked


def _finish(plan: SweepPlan, jobs: Sequence[SweepJob], asked: tuple[str, int] | None) -> int:
    print_text(summarize(plan.folder))
    failed = [job for job in jobs if job.state == "failed"]
    for job in failed:
        print_text(f"{job.run.name} failed; {job.log}", file=sys.stderr)
    if asked is not None and any(job.state in ("waiting", "stopped") for job in jobs):
        raise Stopped(f"{plan.folder} stopped, because {asked[0]}; the same command resumes it", asked[1])
    codes = [job.code for job in jobs if job.state in ("failed", "stopped")]
    return next((code for code in codes if code is not None), exit_codes.OK)


def _find_first_run(job: SweepJob) -> Path | None:
    """Folder of the run that this one begins with and that is yet to be finished."""
    first = job.run.loaded.warm_start
    return None if first is None or (first.run_folder / "final").is_dir() else first.run_folder


def _work_in_fork(threads: int, loaded: Loaded) -> processes.Work:
    def work() -> int:
        torch.set_num_threads(threads)
        return end_with_code(lambda: train_to_code(loaded))

    return work


def _work_in_program(folder: Path, loaded: Loaded) -> processes.Work:
    """A process of its own, which reads the resolved recipe from a file beside the runs."""
    recipe = folder / "recipes" / loaded.run_folder.name / f"{loaded.name}.yaml"
    write_changed(recipe, describe(loaded).encode())
    return partial(processes.replace_program, [sys.executable, "-m", "lockstep", "train", str(recipe)])


def _require_no_program(plan: SweepPlan) -> None:
    """Raises InputError where a run needs code of this program, which its process would not have."""
    for run in plan.runs:
        for option, value in run.options.items():
            if isinstance(value, str) and is_in_program(value):
                raise InputError(
                    f"{option.removeprefix('recipe.')} is a Python object of this program, and its runs are processes "
                    "of their own here, since this one has threads or they compute on GPUs; put it into a file: "
                    "file.py:name"
                )
