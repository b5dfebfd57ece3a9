"""Placement of a run: the machine and devices of each learner rank and inference engine.

It depends only on the recipe and the available devices. `lockstep plan`, the dry run and the launch
use the same object, so that the plan is what runs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self, assert_never

import torch

from lockstep.algorithms.base import Algorithm
from lockstep.algorithms.roles import ModelRole
from lockstep.config import ClusterSection, Computation, SamplerSection
from lockstep.core.errors import InputError
from lockstep.learners import backend as learner_backends
from lockstep.models.device import resolve_device
from lockstep.models.heads import scores_sequences
from lockstep.samplers.backend import find_backend
from lockstep.weight_sync.carriers import TransferKind, TransferRoute

VISIBLE = "CUDA_VISIBLE_DEVICES"


def list_visible(environment: Mapping[str, str]) -> list[str]:
    """The GPUs in CUDA_VISIBLE_DEVICES; empty if it is not set, so that all are visible."""
    return [name.strip() for name in environment.get(VISIBLE, "").split(",") if name.strip()]


@dataclass(frozen=True)
class ProcessCounts:
    """Numbers of processes in a run.

    Attributes:
        ranks: Number of ranks of a learner; policy, critic and reference policy share devices.
        engines: Number of inference engines.
        width: Number of devices of an engine, on one machine.
        apart: Whether engines have their own devices; otherwise they take turns with ranks.
    """

    ranks: int = 0
    engines: int = 0
    width: int = 1
    apart: bool = False

    @classmethod
    def from_sections(
        cls, cluster: ClusterSection, ranks: int = 0, sampler: SamplerSection | None = None
    ) -> Self:
        """The processes of a recipe; without a sampler it has no engines."""
        engines, width = (
            (0, 1) if sampler is None else (sampler.engine_count, sampler.tensor_parallel)
        )
        return cls(ranks, engines, width, cluster.is_apart)

    @property
    def first_engine_device(self) -> int:
        """Index of the first device of an engine."""
        if self.apart:
            return -(-self.ranks // self.width) * self.width
        return 0

    @property
    def total_devices(self) -> int:
        """Total number of devices."""
        return max(
            self.ranks, self.first_engine_device + self.engines * self.width if self.engines else 0
        )


@dataclass(frozen=True)
class DeviceGrid:
    """The available devices, the same number on each machine.

    Attributes:
        machines: Number of machines.
        per_machine: Number of devices per machine.
        on_gpu: Whether they are GPUs; otherwise each is a share of a machine's cores.
    """

    machines: int
    per_machine: int
    on_gpu: bool

    @classmethod
    def from_cores(cls, processes: ProcessCounts) -> Self:
        """Shares of one machine's cores, enough for the processes."""
        return cls(1, max(processes.total_devices, 1), on_gpu=False)

    @classmethod
    def from_similar_machines(cls, gpus: int, processes: ProcessCounts) -> Self:
        """Machines with `gpus` GPUs each, enough for the processes."""
        return cls(max(-(-processes.total_devices // gpus), 1), gpus, on_gpu=True)


@dataclass(frozen=True)
class ProcessPlace:
    """The machine and devices of one process.

    Attributes:
        machine: Index of the machine.
        devices: Indices of its devices on that machine.
        first: Index of the first device over all machines.
        on_gpu: Whether they are GPUs.
    """

    machine: int
    devices: tuple[int, ...]
    first: int
    on_gpu: bool

    @property
    def last_device(self) -> int:
        """Index of its last device over all machines."""
        return self.first + len(self.devices) - 1

    def build_environment(self, inherited: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Environment variables that limit a process on this machine to its own GPUs.

        Args:
            inherited: Environment of this process, which may see only some of the machine's GPUs.
        """
        if not self.on_gpu:
            return {}
        names = list_visible(inherited)
        return {
            VISIBLE: ",".join(names[device] if names else str(device) for device in self.devices)
        }


@dataclass(frozen=True)
class RunPlacement:
    """The places of all processes in a run.

    Attributes:
        devices: Available devices.
        processes: Numbers of processes.
        ranks: Places of a learner's ranks, in order.
        engines: Places of inference engines, in order.
    """

    devices: DeviceGrid
    processes: ProcessCounts
    ranks: tuple[ProcessPlace, ...]
    engines: tuple[ProcessPlace, ...]

    @classmethod
    def from_devices(cls, devices: DeviceGrid, processes: ProcessCounts) -> Self:
        """Places ranks and engines on consecutive devices, in the order of the machines.

        Raises:
            InputError: Too few devices, or an engine would span two machines.
        """
        _require_room(devices, processes)
        starts: list[int] = []
        for engine in range(processes.engines):
            starts.append(processes.first_engine_device + engine * processes.width)
        return cls(
            devices,
            processes,
            tuple(_place_process(devices, rank, 1) for rank in range(processes.ranks)),
            tuple(_place_process(devices, start, processes.width) for start in starts),
        )

    def with_engines(self, section: SamplerSection) -> RunPlacement:
        """The same placement for the engines of a different section.

        Raises:
            InputError: Too few devices.
        """
        processes = replace(
            self.processes, engines=section.engine_count, width=section.tensor_parallel
        )
        return RunPlacement.from_devices(self.devices, processes)

    @property
    def engines_on_one_machine(self) -> bool:
        """True if all engines are on the first machine."""
        return not any(place.machine for place in self.engines)

    @property
    def shares_gpus(self) -> bool:
        """True if engines and learners share GPUs."""
        return (
            self.devices.on_gpu and bool(self.ranks and self.engines) and not self.processes.apart
        )

    def describe(self) -> str:
        """One line with the devices of each process."""
        parts = [f"learner on {self._describe_span(self.ranks)}"] if self.ranks else []
        if self.engines:
            if self.processes.width > 1:
                each = f", {self.processes.width} each,"
            else:
                each = ""
            if self.processes.engines == 1:
                engines = "1 engine"
            else:
                engines = f"{self.processes.engines} engines"
            parts.append(f"{engines}{each} on {self._describe_span(self.engines)}")
        if self.ranks and self.engines and not self.processes.apart:
            turns = ", in turns"
        else:
            turns = ""
        return "; ".join(parts) + turns

    def _describe_span(self, places: Sequence[ProcessPlace]) -> str:
        kind = "GPU" if self.devices.on_gpu else "place"
        first = places[0].first
        last = places[-1].last_device
        machines = 1 + places[-1].machine - places[0].machine
        span = f"{kind} {first}" if first == last else f"{kind}s {first} to {last}"
        if machines == 1:
            return span
        return f"{span} of {machines} machines"


def plan_placement(recipe: Algorithm) -> RunPlacement:
    """The placement of a training run.

    Raises:
        InputError: As `choose_placement`, or weights cannot reach an engine.
    """
    sampler = None if recipe.inference is None else recipe.inference.sampler
    processes = ProcessCounts.from_sections(recipe.cluster, recipe.learner.parallel.ranks, sampler)
    found = choose_placement(recipe.cluster, recipe.learner, processes)
    if sampler is not None and found.engines:
        choose_route(sampler, found, found.engines_on_one_machine)
        if found.shares_gpus and not learner_backends.find_backend(recipe.learner).is_planned:
            _require_cache_size("sampler", sampler, found)
    for name, section in recipe.judges.items():
        _require_cache_size(f"{name}.sampler", section.engine_section, found)
        found.with_engines(section.engine_section)
    return found


def takes_turns(recipe: Algorithm, placement: RunPlacement) -> bool:
    """True if learners and engines share GPUs, and the idle ones are offloaded to host memory."""
    inference = recipe.inference
    both_work = inference is not None and inference.one_step_ahead
    return placement.shares_gpus and recipe.cluster.offload_idle and not both_work


def works_in_engines_turn(role: ModelRole) -> bool:
    """True if a model scores responses while engines are awake, so that it is never offloaded."""
    return not role.is_saved and scores_sequences(role.head)


def choose_route(
    section: SamplerSection, placement: RunPlacement | None, one_machine: bool
) -> TransferRoute:
    """The route of weights to engines: `sampler.transfer`, or chosen by their devices.

    On GPUs, CUDA IPC if all engines' GPUs are also ranks' GPUs, otherwise a process group; on CPUs,
    shared memory within a machine, otherwise a process group. The process group's backend is NCCL
    if no engine is on the GPU of the rank that sends.

    Args:
        section: Section of the engines.
        placement: Places of engines and ranks; None: this machine only.
        one_machine: Whether engines and ranks share memory.

    Raises:
        InputError: The section's transfer is impossible.
    """
    if placement is None or not placement.devices.on_gpu:
        places = ()
    else:
        places = placement.engines
    engines = set[int]()
    for place in places:
        engines.update(range(place.first, place.last_device + 1))
    if placement is None or not engines:
        ranks = []
    else:
        ranks = [place.first for place in placement.ranks]
    shared = bool(ranks) and engines <= set(ranks)
    nccl = bool(ranks) and ranks[0] not in engines
    # the type checker reports a new choice here
    possible = dict[TransferKind | Literal["auto"], TransferRoute]()
    possible["process_group"] = TransferRoute("process_group", backend="nccl" if nccl else "gloo")
    if placement is None or shared:
        possible["cuda_ipc"] = TransferRoute("cuda_ipc")
    if one_machine:
        possible["shared_memory"] = TransferRoute("shared_memory")
    best: TransferKind = "process_group" if ranks or not one_machine else "shared_memory"
    possible["auto"] = possible["cuda_ipc" if shared else best]
    chosen = possible.get(section.transfer)
    if chosen is None:
        raise InputError(
            f"sampler.transfer={section.transfer} cannot reach these engines: cuda_ipc requires "
            "engine GPUs that all have learner ranks, shared_memory a single machine; use "
            "sampler.transfer=auto"
        )
    return chosen


def choose_placement(
    cluster: ClusterSection, computation: Computation, processes: ProcessCounts
) -> RunPlacement:
    """The placement of a run on this machine, or, with Ray, on machines like this one.

    Raises:
        InputError: Fewer GPUs than requested.
    """
    if resolve_device(computation.device).type != "cuda":
        return RunPlacement.from_devices(DeviceGrid.from_cores(processes), processes)
    here = torch.cuda.device_count()
    match cluster.backend:
        case "local":
            return RunPlacement.from_devices(DeviceGrid(1, here, on_gpu=True), processes)
        case "ray":
            return RunPlacement.from_devices(
                DeviceGrid.from_similar_machines(here, processes), processes
            )
        case _:
            assert_never(cluster.backend)


def _place_process(devices: DeviceGrid, start: int, width: int) -> ProcessPlace:
    machine, first = divmod(start, devices.per_machine)
    return ProcessPlace(machine, tuple(range(first, first + width)), start, devices.on_gpu)


def _require_cache_size(key: str, section: SamplerSection, placement: RunPlacement) -> None:
    """Raises InputError if an engine allocates a KV cache of unset size on shared GPUs."""
    backend = find_backend(section)
    if backend is None or not placement.devices.on_gpu or not backend.reserves_cache:
        return
    if backend.cache_bytes(section) is None:
        raise InputError(
            f"{key}.backend is {section.backend}, which reserves its cache at startup on shared "
            f"GPUs; set {key}.kv_cache_gib"
        )


def _require_room(devices: DeviceGrid, processes: ProcessCounts) -> None:
    if not devices.on_gpu:
        return
    there = devices.machines * devices.per_machine
    if processes.engines and devices.per_machine % processes.width:
        raise InputError(
            f"sampler.tensor_parallel is {processes.width}, which must divide a machine's "
            f"{devices.per_machine} GPUs; an engine cannot span machines"
        )
    if processes.total_devices > there:
        if processes.apart:
            how = ", at the same time (with cluster.placement=colocated they take turns)"
        else:
            how = ""
        raise InputError(
            f"learner.parallel asks for {processes.ranks} GPUs and sampler.replicas × "
            "sampler.tensor_parallel for "
            f"{processes.engines} × {processes.width}{how}, but there are {there} GPUs; lower them"
        )
