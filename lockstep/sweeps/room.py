"""The room of a sweep on this machine: how many runs at a time, and the threads or GPUs of each."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.algorithms.base import Algorithm
from lockstep.cluster.placement import VISIBLE, Placement, list_visible, placement_of
from lockstep.errors import InputError
from lockstep.process_defaults import MOST_THREADS, count_cores, read_given_threads
from lockstep.sweeps.plan import SweepPlan


@dataclass(frozen=True)
class Room:
    """The room that runs have.

    Attributes:
        threads: Threads of each run.
        slots: One for each run at a time: environment variables of the run there.
        on_gpu: True if runs compute on GPUs.
    """

    threads: int
    slots: tuple[dict[str, str], ...]
    on_gpu: bool

    @property
    def sentence(self) -> str:
        """The number of runs at a time, and what each has."""
        threads = f"{self.threads} {'thread' if self.threads == 1 else 'threads'}"
        return f"{len(self.slots)} at a time, {threads} each"


def make_room(plan: SweepPlan, jobs: int | None, noted_threads: int | None) -> Room:
    """Divides this machine among the runs of a sweep.

    Args:
        plan: The sweep.
        jobs: Runs at a time; None: as many as there is room for.
        noted_threads: Threads of each run so far, which its bits may depend on; None: the sweep is new.

    Raises:
        InputError: No run at a time is asked for, or more than GPUs have room for.
    """
    if jobs is not None and jobs < 1:
        raise InputError(f"--jobs is {jobs}; at least one run at a time is needed")
    placements = [placement_of(run.loaded.expect(Algorithm)) for run in plan.runs]
    if any(placement.devices.on_gpu for placement in placements):
        slots = divide_gpus(plan, placements, jobs)
        return Room(noted_threads or read_given_threads() or share_cores(len(slots)), slots, on_gpu=True)
    processes, cores = max(placement.processes.devices for placement in placements), count_cores()
    threads = noted_threads or read_given_threads()
    fitting = max(1, cores // max(processes, threads or 1))
    number = min(len(plan.runs), fitting if jobs is None else jobs)
    return Room(threads or share_cores(number), ({},) * number, on_gpu=False)


def share_cores(number: int) -> int:
    """Threads of each of so many runs: their share of the cores, at most as many as a single run would have."""
    return max(1, min(count_cores() // number, MOST_THREADS))


def divide_gpus(plan: SweepPlan, placements: Sequence[Placement], jobs: int | None) -> tuple[dict[str, str], ...]:
    """A slot for each run at a time, with GPUs of its own; a single one where Ray divides several machines."""
    ray = not all(run.loaded.training.cluster.on_this_machine for run in plan.runs)
    here = max(placement.devices.per_machine for placement in placements)
    names = list_visible(os.environ) or [str(number) for number in range(here)]
    each = max(max(placement.processes.devices, 1) for placement in placements)
    fitting = 1 if ray else max(1, len(names) // each)
    if jobs is not None and jobs > fitting:
        raise InputError(
            f"--jobs is {jobs}, but a run takes {each} of {len(names)} GPUs, so {fitting} at a time fit; lower it"
        )
    number = min(len(plan.runs), fitting if jobs is None else jobs)
    if ray:
        return ({},)
    return tuple({VISIBLE: ",".join(names[slot * each : (slot + 1) * each])} for slot in range(number))
