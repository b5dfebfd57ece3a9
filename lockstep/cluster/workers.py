"""The workers of a run: child processes of this one, or actors in a Ray cluster; all end with the
run.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

import torch

from lockstep.cluster.child_process import ChildProcess
from lockstep.cluster.placement import Place, Placement, Processes, choose_placement, choose_route
from lockstep.cluster.transport import Factory
from lockstep.cluster.worker_proxy import Remote
from lockstep.config import ClusterSection, Computation, SamplerSection
from lockstep.core.errors import InputError, install_command
from lockstep.report.progress import Progress
from lockstep.weight_sync.carriers import Route

if TYPE_CHECKING:
    from lockstep.cluster.ray_transport import RayCluster

LOOPBACK = "127.0.0.1"


class Workers(ExitStack):
    """The processes that a run starts; all end when the context is left.

    Args:
        placement: The place of each process; None: learners and engines that are opened one by one
            share the devices of this machine.
        cluster: The Ray cluster whose actors they are; None: they are child processes.
    """

    def __init__(
        self, placement: Placement | None = None, cluster: RayCluster | None = None
    ) -> None:
        super().__init__()
        self._placement = placement
        self._cluster = cluster
        if cluster is not None:
            self.callback(cluster.close)

    @property
    def here(self) -> bool:
        """True if workers are processes of this machine, so that a single one may live in this
        process.
        """
        return self._cluster is None

    @property
    def one_machine(self) -> bool:
        """True if workers share memory with this process."""
        return self._cluster is None or self._cluster.one_machine

    @property
    def engines_apart(self) -> bool:
        """True if engines have devices of their own, so that none can share a learner's, or be in
        this process.
        """
        return (
            self._placement is not None
            and self._placement.processes.apart
            and bool(self._placement.ranks)
        )

    @property
    def address(self) -> str:
        """Address of this process, as workers reach it."""
        if self._cluster is None:
            return LOOPBACK
        return self._cluster.address

    def place_ranks(self, ranks: int, computation: Computation) -> Sequence[Place]:
        """The places of a learner's ranks: the first `ranks` of the run's.

        Raises:
            InputError: There are too few devices.
        """
        if self._placement is None:
            return choose_placement(ClusterSection(), computation, Processes(ranks)).ranks
        return self._placement.ranks[:ranks]

    def place_engines(self, section: SamplerSection, computation: Computation) -> Sequence[Place]:
        """The places of the engines of a section: those of the run, or a judge's, which take turns
        with them.

        Raises:
            InputError: There are too few devices.
        """
        if self._placement is None:
            return choose_placement(
                ClusterSection(), computation, Processes.of(ClusterSection(), 0, section)
            ).engines
        return self._placement.with_engines(section).engines

    def choose_route(self, section: SamplerSection) -> Route:
        """The route of weights to the engines of a section, see `placement.choose_route`."""
        if self._placement is None:
            placement = None
        else:
            placement = self._placement.with_engines(section)
        return choose_route(section, placement, self.one_machine)

    def start(
        self,
        factory: Factory,
        name: str,
        timeout_s: float,
        place: Place,
        of: int = 1,
        threads: int | None = None,
    ) -> Remote:
        """Starts a worker.

        Args:
            factory: Builds the worker's object.
            name: Name of the worker.
            timeout_s: The longest that one call may take.
            place: Its machine and devices.
            of: Number of workers that run side by side.
            threads: Torch threads of the worker; None: its share of the machine.
        """
        if self._cluster is None:
            share = max(1, torch.get_num_threads() // of)
            transport = ChildProcess(factory, name, threads or share, place.environment())
        else:
            transport = self._cluster.actor(factory, place, threads or self._cluster.threads)
        return Remote(transport, name, timeout_s)


HERE = Workers()
"""Child processes of no run; the caller ends those that it starts."""


def workers_of(
    section: ClusterSection,
    computation: Computation,
    progress: Progress,
    ranks: int = 0,
    sampler: SamplerSection | None = None,
) -> Workers:
    """Opens the workers of a run as `cluster` says.

    Args:
        section: The section `cluster`.
        computation: Device and type of the workers.
        progress: Reports to the user.
        ranks: Number of learner ranks.
        sampler: The inference engines; None: there are none.

    Raises:
        ValueError: If there is no such cluster, or no room in it.
    """
    processes = Processes.of(section, ranks, sampler)
    if section.on_this_machine or not processes.devices:
        return Workers(choose_placement(section, computation, processes))
    if importlib.util.find_spec("ray") is None:
        raise InputError(
            f"cluster.backend is ray, which is not installed; {install_command('ray')}"
        )
    from lockstep.cluster.ray_transport import RayCluster

    with progress.phase("join the Ray cluster"):
        cluster = RayCluster(section.ray, processes, computation.may_use_gpu)
    return Workers(cluster.placement, cluster)
