"""A transport to workers that are actors of a Ray cluster.

An actor serves as a child process does (`transport.serve_calls`); messages travel through Ray's
object store, as the same bytes that a socket would carry. A Ray that is started here listens on
loopback only, and requires a token.
"""

from __future__ import annotations

import contextlib
import os
import queue
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no usage statistics are sent
# a busy machine takes longer than the default 30 s
os.environ.setdefault("RAY_raylet_start_wait_time_s", "300")
# makes a single-machine Ray listen on loopback
os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util import get_node_ip_address
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from lockstep.cluster.placement import DeviceGrid, ProcessCounts, ProcessPlace, RunPlacement
from lockstep.cluster.transport import (
    CLOSED,
    GRACE_S,
    WireMessage,
    WorkerFactory,
    decode_message,
    encode_message,
    serve_calls,
    take_threads,
)
from lockstep.config import RaySection
from lockstep.core.errors import InputError, first_line
from lockstep.system.guarded_imports import TRUSTED

RayFrame = list[Any]
"""The parts of a message, as byte arrays, which Ray moves within a machine without a copy."""

_TOLD_S = 30.0
"""Timeout for Ray to report how an unresponsive actor ended."""

_SHARE = 1 / 16
"""An actor's share of its bundle; policy, critic, reference, judges and samplers take turns."""


class RayCluster:
    """A Ray placement group for a run's workers; joins a cluster, or starts one on this machine.

    A bundle has the devices of one engine, so that these are on one machine; ranks take its devices
    one by one.

    Args:
        section: Options of the cluster.
        processes: Processes to place.
        gpus: Whether workers compute on GPUs, if the cluster has any.

    Raises:
        ValueError: If the cluster is missing or full.

    Attributes:
        placement: Place of each process.
        address: Address of this process in the cluster.
    """

    def __init__(self, section: RaySection, processes: ProcessCounts, gpus: bool) -> None:
        self._end = contextlib.ExitStack()
        self._end.enter_context(
            join_cluster(section.address, round(processes.total_devices * section.cpus_per_worker))
        )
        per_machine = max(
            int(node["Resources"].get("GPU", 0)) for node in ray.nodes() if node["Alive"]
        )
        self._on_gpu = gpus and per_machine > 0
        self._cpus = section.cpus_per_worker
        self._width = processes.width
        self.placement = RunPlacement.from_devices(
            DeviceGrid.from_similar_machines(per_machine, processes)
            if self._on_gpu
            else DeviceGrid.from_cores(processes),
            processes,
        )
        self._places = self._reserve_places(
            -(-processes.total_devices // self._width), section.timeout_s
        )
        nodes = placement_group_table(self._places)["bundles_to_node_id"]
        order = list(dict.fromkeys(nodes[bundle] for bundle in sorted(nodes)))
        # in machine order, so that neighbors in the placement are on one machine
        self._bundles = sorted(nodes, key=lambda bundle: (order.index(nodes[bundle]), bundle))
        self._names: list[list[str]] | None = None  # of each bundle's GPUs on its machine
        if self._on_gpu and self._width > 1:
            ask: Any = ray.remote(ray.get_gpu_ids)
            options = {"num_cpus": 0, "num_gpus": self._width}
            asked = [
                ask.options(**options, scheduling_strategy=self._pin_to_bundle(bundle)).remote()
                for bundle in self._bundles
            ]
            self._names = [sorted(map(str, names)) for names in ray.get(asked)]
        self.address = str(get_node_ip_address())

    @property
    def threads_per_worker(self) -> int:
        """Torch threads per worker."""
        return max(1, int(self._cpus))

    @property
    def one_machine(self) -> bool:
        """True if all workers are on this process's machine."""
        nodes = set(placement_group_table(self._places)["bundles_to_node_id"].values())
        return nodes == {ray.get_runtime_context().get_node_id()}

    def start_worker(self, factory: WorkerFactory, place: ProcessPlace, threads: int) -> RayWorker:
        """Starts a worker in its place.

        Raises:
            InputError: A judge's worker needs GPUs that the run has not reserved.
        """
        number, within = divmod(place.first, self._width)
        if self._on_gpu and (
            number >= len(self._bundles) or within + len(place.devices) > self._width
        ):
            raise InputError(
                "a judge's sampler.replicas × sampler.tensor_parallel exceeds the Ray cluster "
                "GPUs of the run; lower them"
            )
        bundle = self._bundles[number % len(self._bundles)]
        options: dict[str, Any] = {
            "num_cpus": self._cpus * _SHARE,
            "num_gpus": float(self._on_gpu) * _SHARE,
        }
        environment = {name: os.environ[name] for name in (TRUSTED,) if name in os.environ}
        if self._names is not None:  # Ray shows an actor one GPU of its bundle, any one
            options["runtime_env"] = {
                "env_vars": {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}
            }
            own = self._names[number][within : within + len(place.devices)]
            environment |= {"CUDA_VISIBLE_DEVICES": ",".join(own)}
        return RayWorker(
            factory,
            threads,
            options | {"scheduling_strategy": self._pin_to_bundle(bundle)},
            environment,
        )

    def close(self) -> None:
        """Releases the placement group, and stops a Ray that was started here."""
        with self._end, contextlib.suppress(RayError):
            remove_placement_group(self._places)

    def _pin_to_bundle(self, bundle: int) -> PlacementGroupSchedulingStrategy:
        return PlacementGroupSchedulingStrategy(self._places, placement_group_bundle_index=bundle)

    def _reserve_places(self, count: int, timeout_s: float) -> Any:
        bundle = {"CPU": self._cpus * self._width} | (
            {"GPU": float(self._width)} if self._on_gpu else {}
        )
        places = placement_group([bundle] * count, strategy="PACK")
        if places.wait(timeout_s):
            return places
        remove_placement_group(places)
        resources = ray.cluster_resources()
        has = ", ".join(f"{resources.get(kind, 0):g} {kind}s" for kind in bundle)
        raise InputError(
            f"the Ray cluster has no room for {count} workers with {bundle['CPU']:g} CPUs each "
            f"(it has {has}), and none became free within cluster.ray.timeout_s={timeout_s:g}; "
            "lower sampler.replicas or learner.parallel, set cluster.placement=colocated, or add "
            "nodes"
        )


class RayWorker:
    """A worker as a Ray actor; implements `transport.WorkerTransport`.

    It ends with the process that started it.
    """

    def __init__(
        self,
        factory: WorkerFactory,
        threads: int,
        options: Mapping[str, Any],
        environment: Mapping[str, str],
    ) -> None:
        self._actor = _ACTOR.options(**options).remote()
        self._life = self._actor.live.remote(threads, os.getcwd(), sys.path, dict(environment))
        self._next = self._actor.give.remote()
        self._closed = False
        self.send_message(factory, 0.0)

    def send_message(self, message: WireMessage, timeout_s: float) -> None:
        """Passes the message to Ray, which returns immediately even if the worker is busy."""
        if not self.is_alive():
            raise ConnectionError("the worker is gone")
        self._actor.take.remote([np.frombuffer(part, np.uint8) for part in encode_message(message)])

    def receive_message(self, timeout_s: float) -> WireMessage:
        if self._closed:
            raise ConnectionError("the worker was ended")
        try:
            frame = ray.get(self._next, timeout=timeout_s)
        except GetTimeoutError as error:
            raise TimeoutError(str(error)) from None
        except RayError as error:
            raise ConnectionError(first_line(error)) from error
        if frame is None:
            raise EOFError("the worker has ended")
        self._next = self._actor.give.remote()
        return decode_message(list(map(bytearray, frame)))

    def has_message(self, timeout_s: float) -> bool:
        return self._closed or bool(ray.wait([self._next], timeout=timeout_s)[0])

    def is_alive(self) -> bool:
        return not self._closed and not ray.wait([self._life], timeout=0)[0]

    def describe_ending(self) -> str:
        if self._closed:
            return CLOSED
        try:
            ray.get(self._life, timeout=_TOLD_S)
        except GetTimeoutError:
            return "it does not respond"
        except RayError as error:
            return f"Ray says: {first_line(error)}"
        return "it has left"

    def close(self, at_once: bool = False) -> None:
        if self._closed:
            return
        self._closed = True
        if not at_once:
            self._actor.take.remote(None)
            ray.wait([self._life], timeout=GRACE_S)
        ray.kill(self._actor)


class _WorkerActor:
    """The worker's end: one thread serves calls, and two carry messages to and from it."""

    def __init__(self) -> None:
        self._taken: queue.SimpleQueue[RayFrame | None] = queue.SimpleQueue()
        self._given: queue.Queue[RayFrame | None] = queue.Queue(maxsize=2)

    def live(
        self, threads: int, folder: str, paths: list[str], environment: dict[str, str]
    ) -> None:
        """Serves calls until it receives the end of messages.

        Uses the driver's folder, if it exists here, and its module paths.
        """
        os.environ.update(environment)
        sys.path += [path for path in paths if path not in sys.path]
        with contextlib.suppress(FileNotFoundError):
            os.chdir(folder)
        take_threads(threads)
        with contextlib.suppress(EOFError):
            serve_calls(self._receive_frame, self._send_message)
        self._given.put(None)

    @ray.method(concurrency_group="taking")
    def take(self, frame: RayFrame | None) -> None:
        """Queues a message to the worker; None: no more messages."""
        self._taken.put(frame)

    @ray.method(concurrency_group="giving")
    def give(self) -> RayFrame | None:
        """Waits for the worker's next message; None: the worker has ended."""
        return self._given.get()

    def _receive_frame(self) -> Sequence[bytearray]:
        frame = self._taken.get()
        if frame is None:
            raise EOFError("no more messages will come")
        return list(map(bytearray, frame))

    def _send_message(self, message: WireMessage) -> None:
        self._given.put([np.frombuffer(part, np.uint8).copy() for part in encode_message(message)])


_ACTOR: Any = ray.remote(concurrency_groups={"taking": 1, "giving": 1})(_WorkerActor)  # pyright: ignore[reportCallIssue]


@contextlib.contextmanager
def join_cluster(address: str | None, cpus: int) -> Iterator[None]:
    """Joins a cluster, or starts one, unless this process is in one already.

    Args:
        address: Address of the cluster; None starts one on this machine, which ends with the block.
        cpus: Minimum number of CPUs that a cluster on this machine declares.

    Raises:
        ValueError: If the cluster is missing.
    """
    if ray.is_initialized():
        yield
        return
    try:
        if address is None:
            ray.init(
                num_cpus=max(cpus, os.cpu_count() or 1),
                include_dashboard=False,
                log_to_driver=False,
            )
        else:
            ray.init(address, log_to_driver=False)
    except Exception as error:  # Ray raises anything
        ray.shutdown()
        if address is None:
            raise InputError(f"cannot start Ray here: {first_line(error)}") from error
        raise InputError(
            f"cluster.ray.address={address} cannot be joined: {first_line(error)}; `ray start "
            "--head` starts a cluster and prints its address"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()
