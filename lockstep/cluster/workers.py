"""The workers of a run: child processes of this one, or actors in a Ray cluster; all end with the run."""

from __future__ import annotations

import importlib.util
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from lockstep.cluster.transport import Factory, Role
from lockstep.cluster.worker_proxy import Remote, spawn_worker
from lockstep.config import ClusterSection, Computation
from lockstep.errors import InputError
from lockstep.report.progress import Progress

if TYPE_CHECKING:
    from lockstep.cluster.ray_transport import RayCluster

LOOPBACK = "127.0.0.1"


class Workers(ExitStack):
    """The processes that a run starts; all end when the context is left.

    Args:
        cluster: Where workers start; None: as child processes.
    """

    def __init__(self, cluster: RayCluster | None = None) -> None:
        super().__init__()
        self._cluster = cluster
        if cluster is not None:
            self.callback(cluster.close)

    @property
    def here(self) -> bool:
        """True if workers are processes of this machine, so that a single one may live in this process."""
        return self._cluster is None

    @property
    def one_machine(self) -> bool:
        """True if workers share memory with this process."""
        return self._cluster is None or self._cluster.one_machine

    @property
    def address(self) -> str:
        """Address of this process, as workers reach it."""
        return LOOPBACK if self._cluster is None else self._cluster.address

    def start(
        self,
        factory: Factory,
        name: str,
        timeout_s: float,
        role: Role,
        number: int,
        of: int,
        threads: int | None = None,
    ) -> Remote:
        """Starts a worker.

        Args:
            factory: Builds the worker's object.
            name: Of the worker.
            timeout_s: The longest that one call may take.
            role: Learner rank or sampler.
            number: Its number in that role, from 0.
            of: Number of workers that run side by side.
            threads: Torch threads of the worker; None: its share of the machine.
        """
        if self._cluster is None:
            return spawn_worker(factory, name, timeout_s, threads, of)
        connect = partial(self._cluster.actor, factory, role, number, threads or self._cluster.threads)
        return Remote(connect, name, timeout_s)


HERE = Workers()
"""Child processes of no run; the caller ends those that it starts."""


def workers_of(
    section: ClusterSection, computation: Computation, progress: Progress, learners: int = 0, samplers: int = 0
) -> Workers:
    """Opens the workers of a run as `cluster` says.

    Args:
        section: The section `cluster`.
        computation: Device and type of the workers.
        progress: Reports to the user.
        learners: Number of learner ranks.
        samplers: Number of samplers.

    Raises:
        ValueError: If there is no such cluster, or no room in it.
    """
    if section.on_this_machine or not learners + samplers:
        return Workers()
    if importlib.util.find_spec("ray") is None:
        raise InputError('cluster.backend is ray, which is not installed; pip install "lockstep-rl[ray]"')
    from lockstep.cluster.ray_transport import RayCluster

    with progress.phase("join the Ray cluster"):
        return Workers(RayCluster(section.ray, learners, samplers, computation.may_use_gpu))
