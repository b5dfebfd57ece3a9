"""`lockstep sweep`: one `lockstep train` process per combination, several at a time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from lockstep.config.loading import describe_recipe
from lockstep.core import exit_codes
from lockstep.core.errors import InputError
from lockstep.report.html import write_report
from lockstep.report.summary import PAGE
from lockstep.report.sweeps import summarize_sweep
from lockstep.run.folder.files import lock_folder
from lockstep.run.stop import StoppedRun, StopRequests, end_with_code, stop_on_signals
from lockstep.run.train import judge_finished
from lockstep.sweeps.plan import PlannedRun, SweepPlan
from lockstep.system.printable import print_status, print_text
from lockstep.system.process_defaults import (
    ENDS_WITH,
    MOST_THREADS,
    THREADS,
    count_cores,
    read_given_threads,
)
from lockstep.system.whole_files import write_changed

LOG = "sweep.log"
"""File in a run's folder with the output of its process."""

_POLL_S = 0.2
_STOPPED = (
    exit_codes.OUT_OF_TIME,
    exit_codes.HUNG_UP,
    exit_codes.INTERRUPTED,
    exit_codes.TERMINATED,
)


@dataclass(frozen=True)
class SweepRunner:
    """Runs a sweep, with one thread per run that waits for its process.

    Attributes:
        plan: The sweep.
        jobs: Runs at a time.
        stop: Requests an early end; nothing is started after that.
        warm_starts: A lock for each run that others start from, so that only one trains it.
        processes: All processes so far.
    """

    plan: SweepPlan
    jobs: int
    stop: StopRequests
    warm_starts: dict[Path | None, Lock] = field(default_factory=lambda: defaultdict(Lock))
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def run_all(self) -> list[int | None]:
        """Runs all unfinished runs. Returns their exit codes; None means not started."""
        with ThreadPoolExecutor(self.jobs) as pool, self._kill_if_interrupted():
            return list(pool.map(self._run_one, self.plan.runs))

    def _run_one(self, run: PlannedRun) -> int | None:
        if run.is_finished:
            return end_with_code(lambda: judge_finished(run.folder))
        first = find_warm_start(run)
        if first is None:
            return self._train_run(run)
        with self.warm_starts[first]:
            return self._train_run(run)

    def _train_run(self, run: PlannedRun) -> int | None:
        if self.stop.check_after_step() is not None:
            return None
        print_status(f"{run.name} starts; {run.folder / LOG}")
        recipe = self.plan.folder / "recipes" / run.name / f"{run.loaded.name}.yaml"
        write_changed(recipe, describe_recipe(run.loaded).encode())
        run.folder.mkdir(parents=True, exist_ok=True)
        environment = {THREADS: str(share_cores(self.jobs)), ENDS_WITH: str(os.getpid())}
        with (run.folder / LOG).open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "lockstep", "train", str(recipe)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                start_new_session=True,  # Ctrl-C reaches only the sweep, which stops each run once
            )
        with process:
            self.processes.append(process)
            code = self._wait_for_process(process)
        print_status(f"{run.name} {describe_outcome(code)}; {run.folder / LOG}")
        return code

    def _wait_for_process(self, process: subprocess.Popen[bytes]) -> int:
        """Waits for a process; tells it to save and stop if the sweep is stopping.

        Returns its exit code.
        """
        is_asked = False
        while process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_S)
            if not is_asked and self.stop.check_after_step() is not None:
                process.send_signal(signal.SIGTERM)
                is_asked = True
        if process.returncode >= 0:
            return process.returncode
        return 128 - process.returncode

    @contextmanager
    def _kill_if_interrupted(self) -> Iterator[None]:
        """Ends all processes and their children if a second Ctrl-C interrupts the block."""
        try:
            yield
        except BaseException:
            self.stop.ask_to_stop("the sweep was interrupted", exit_codes.INTERRUPTED)
            for process in [process for process in self.processes if process.poll() is None]:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            raise


def describe_outcome(code: int) -> str:
    """Describes how a run ended, by its exit code; "stopped" means early, on request, and saved."""
    if code == exit_codes.OK:
        return "finished"
    if code in _STOPPED:
        return "stopped"
    return "failed"


def find_warm_start(run: PlannedRun) -> Path | None:
    """Folder of the run that this one starts from, if that run is unfinished."""
    first = run.loaded.warm_start
    if first is None or (first.run_folder / "final").is_dir():
        return None
    return first.run_folder


def share_cores(jobs: int) -> int:
    """Threads per run: from the environment, or a share of the cores."""
    return read_given_threads() or max(1, min(count_cores() // jobs, MOST_THREADS))


def run_sweep(plan: SweepPlan, jobs: int = 1) -> int:
    """Runs or resumes a sweep to its end; writes its report and prints its table.

    Args:
        plan: The sweep.
        jobs: Runs at a time.

    Returns:
        0 if all runs finished; else the exit code of the first that failed.

    Raises:
        InputError: The folder holds a different sweep.
        Stopped: An early end was requested; all runs were saved.
    """
    if jobs < 1:
        raise InputError(f"--jobs is {jobs}; set it to at least 1")
    plan.require_same()
    plan.folder.mkdir(parents=True, exist_ok=True)
    stop = StopRequests(None)
    with lock_folder(plan.folder):
        plan.write_plan()
        print_status(f"{plan.folder}: {len(plan.runs)} runs, {jobs} at a time")
        with stop_on_signals(stop, print_status):
            codes = SweepRunner(plan, jobs, stop).run_all()
        if any((run.folder / "recipe.yaml").is_file() for run in plan.runs):
            write_report([plan.folder], plan.folder / PAGE)
    print_text(summarize_sweep(plan.folder))
    asked = stop.check_after_step()
    if asked is not None and any(code is None or code in _STOPPED for code in codes):
        raise StoppedRun(
            f"{plan.folder} stopped: {asked[0]}; rerun the command to resume", asked[1]
        )
    return next((code for code in codes if code), exit_codes.OK)
