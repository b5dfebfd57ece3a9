"""The workers of a run: child processes, or actors in a Ray cluster; all end with the run."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

import torch

from lockstep.cluster.child_process import ChildProcess
from lockstep.cluster.placement import (
    ProcessCounts,
    ProcessPlace,
    RunPlacement,
    choose_placement,
    choose_route,
)
from lockstep.cluster.transport import WorkerFactory
from lockstep.cluster.worker_proxy import WorkerProxy
from lockstep.config import ClusterSection, Computation, SamplerSection
from lockstep.core.errors import InputError, install_command
from lockstep.report.progress import RunProgress
from lockstep.weight_sync.carriers import TransferRoute

if TYPE_CHECKING:
    from lockstep.cluster.ray_transport import RayCluster

LOOPBACK = "127.0.0.1"


class WorkerPool(ExitStack):
    """The processes that a run starts; all end when the context exits.

    Args:
        placement: Place of each process; None: learners and engines are opened one by one, and
            share this machine's devices.
        cluster: Ray cluster of the workers; None: they are child processes.
    """

    def __init__(
        self, placement: RunPlacement | None = None, cluster: RayCluster | None = None
    ) -> None:
        super().__init__()
        self._placement = placement
        self._cluster = cluster
        if cluster is not None:
            self.callback(cluster.close)

    @property
    def is_local(self) -> bool:
        """True if workers are local processes, so that a single worker may be this process."""
        return self._cluster is None

    @property
    def one_machine(self) -> bool:
        """True if workers share memory with this process."""
        return self._cluster is None or self._cluster.one_machine

    @property
    def engines_apart(self) -> bool:
        """True if engines have their own devices; then none shares a learner's or this process."""
        return (
            self._placement is not None
            and self._placement.processes.apart
            and bool(self._placement.ranks)
        )

    @property
    def address(self) -> str:
        """The address at which workers reach this process."""
        if self._cluster is None:
            return LOOPBACK
        return self._cluster.address

    def place_ranks(self, ranks: int, computation: Computation) -> Sequence[ProcessPlace]:
        """Places of a learner's ranks: the first `ranks` of the run's.

        Raises:
            InputError: Too few devices.
        """
        if self._placement is None:
            return choose_placement(ClusterSection(), computation, ProcessCounts(ranks)).ranks
        return self._placement.ranks[:ranks]

    def place_engines(
        self, section: SamplerSection, computation: Computation
    ) -> Sequence[ProcessPlace]:
        """Places of a section's engines: the run's, or a judge's, which takes turns with them.

        Raises:
            InputError: Too few devices.
        """
        if self._placement is None:
            return choose_placement(
                ClusterSection(),
                computation,
                ProcessCounts.from_sections(ClusterSection(), 0, section),
            ).engines
        return self._placement.with_engines(section).engines

    def choose_route(self, section: SamplerSection) -> TransferRoute:
        """The route of weights to a section's engines; see `placement.choose_route`."""
        if self._placement is None:
            placement = None
        else:
            placement = self._placement.with_engines(section)
        return choose_route(section, placement, self.one_machine)

    def start_worker(
        self,
        factory: WorkerFactory,
        name: str,
        timeout_s: float,
        place: ProcessPlace,
        of: int = 1,
        threads: int | None = None,
    ) -> WorkerProxy:
        """Starts a worker.

        Args:
            factory: Builds the worker's object.
            name: Name of the worker.
            timeout_s: Timeout of a call.
            place: Machine and devices of the worker.
            of: Number of concurrent workers.
            threads: Torch threads of the worker; None: its share of the machine.
        """
        if self._cluster is None:
            share = max(1, torch.get_num_threads() // of)
            transport = ChildProcess(factory, name, threads or share, place.build_environment())
        else:
            transport = self._cluster.start_worker(
                factory, place, threads or self._cluster.threads_per_worker
            )
        return WorkerProxy(transport, name, timeout_s)


HERE = WorkerPool()
"""Child processes outside of a run; the caller ends those that it starts."""


def open_worker_pool(
    section: ClusterSection,
    computation: Computation,
    progress: RunProgress,
    ranks: int = 0,
    sampler: SamplerSection | None = None,
) -> WorkerPool:
    """Opens the workers of a run by its section `cluster`.

    Args:
        section: Section `cluster`.
        computation: Device and type of the workers.
        progress: Reports to the user.
        ranks: Number of learner ranks.
        sampler: Inference engines; None: no engines.

    Raises:
        ValueError: If the cluster is missing or full.
    """
    processes = ProcessCounts.from_sections(section, ranks, sampler)
    if section.on_this_machine or not processes.total_devices:
        return WorkerPool(choose_placement(section, computation, processes))
    if importlib.util.find_spec("ray") is None:
        raise InputError(
            f"cluster.backend is ray, but Ray is not installed; {install_command('ray')}"
        )
    from lockstep.cluster.ray_transport import RayCluster

    with progress.phase("join the Ray cluster"):
        cluster = RayCluster(section.ray, processes, computation.may_use_gpu)
    return WorkerPool(cluster.placement, cluster)
