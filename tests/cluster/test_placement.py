"""Which rank and which engine lives where: what holds for every recipe and every set of
machines.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import Any

import pytest
from gpus import show_gpus
from remote_workers import Abacus

from lockstep.algorithms.base import Algorithm
from lockstep.cluster.placement import (
    DeviceGrid,
    ProcessCounts,
    ProcessPlace,
    RunPlacement,
    choose_placement,
    choose_route,
    plan_placement,
    takes_turns,
)
from lockstep.cluster.workers import WorkerPool
from lockstep.config import ClusterSection, Computation, SamplerSection
from lockstep.config.loading import load_recipe
from lockstep.core.errors import InputError
from lockstep.weight_sync.carriers import TransferRoute

MACHINES = [DeviceGrid(1, 1, True), DeviceGrid(1, 8, True), DeviceGrid(2, 8, True)]
CASES = [
    ProcessCounts(*case)
    for case in itertools.product((0, 1, 2, 7, 8, 16), (0, 1, 2, 8, 16), (1, 2, 8), (False, True))
]


def devices_of(places: tuple[ProcessPlace, ...]) -> list[tuple[int, int]]:
    return [(place.machine, device) for place in places for device in place.devices]


@pytest.mark.parametrize(
    "devices", MACHINES, ids=lambda found: f"{found.machines}x{found.per_machine}"
)
def test_placement_gives_each_rank_and_each_engine_distinct_gpus(devices: DeviceGrid) -> None:
    placed = 0
    for processes in CASES:
        try:
            found = RunPlacement.from_devices(devices, processes)
        except InputError:
            fits = processes.total_devices <= devices.machines * devices.per_machine
            assert not fits or devices.per_machine % processes.width, processes
            continue
        placed += 1
        ranks, engines = devices_of(found.ranks), devices_of(found.engines)
        assert len(ranks) == len(set(ranks)) == processes.ranks, (
            "no two ranks of a learner share a device"
        )
        assert len(engines) == len(set(engines)) == processes.engines * processes.width, (
            "nor do two engines"
        )
        assert all(
            0 <= m < devices.machines and 0 <= d < devices.per_machine for m, d in ranks + engines
        )
        assert all(len(place.devices) == processes.width for place in found.engines), (
            "all of them on one machine"
        )
        assert [place.first for place in found.ranks] == list(range(processes.ranks)), (
            "in the order of the machines"
        )
        if processes.apart:
            assert not set(ranks) & set(engines)
        elif ranks and engines:
            assert ranks[0] == engines[0], "they take turns"
        assert (
            max((place.last_device for place in found.ranks + found.engines), default=-1) + 1
            == processes.total_devices
        )
    assert placed > 4


@pytest.mark.parametrize("processes", CASES, ids=str)
def test_cpu_placement_fits_any_number_of_ranks_and_engines(processes: ProcessCounts) -> None:
    found = RunPlacement.from_devices(DeviceGrid.from_cores(processes), processes)
    assert (len(found.ranks), len(found.engines)) == (processes.ranks, processes.engines)
    assert all(place.build_environment() == {} for place in found.ranks + found.engines)
    shared = {place.first for place in found.ranks} & {place.first for place in found.engines}
    assert not shared or not processes.apart


def test_placement_sets_cuda_visible_devices_to_gpus_of_the_process() -> None:
    found = RunPlacement.from_devices(DeviceGrid(2, 8, True), ProcessCounts(16, 8, 2))
    assert found.ranks[9].build_environment({}) == {"CUDA_VISIBLE_DEVICES": "1"}
    assert found.engines[5].build_environment({}) == {"CUDA_VISIBLE_DEVICES": "2,3"}
    some = {"CUDA_VISIBLE_DEVICES": "4, 5,GPU-8f1c,7"}
    assert RunPlacement.from_devices(DeviceGrid(1, 4, True), ProcessCounts(4)).ranks[
        2
    ].build_environment(some) == {"CUDA_VISIBLE_DEVICES": "GPU-8f1c"}, (
        "of those that this process sees itself"
    )


def test_child_process_gets_cuda_visible_devices_of_its_placement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,7")
    place = RunPlacement.from_devices(DeviceGrid(1, 2, True), ProcessCounts(2)).ranks[1]
    remote = WorkerPool().start_worker(Abacus, "seeing", 400.0, place)
    try:
        assert remote.call("variable", "CUDA_VISIBLE_DEVICES") == "7"
    finally:
        remote.close()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "6,7"


COLOCATED, SEPARATE = ClusterSection(), ClusterSection(placement="separate")


WITHIN, HOST, GLOO = (
    TransferRoute("cuda_ipc"),
    TransferRoute("shared_memory"),
    TransferRoute("process_group"),
)
NCCL = TransferRoute("process_group", backend="nccl")


@pytest.mark.parametrize(
    ("devices", "processes", "route"),
    [
        (DeviceGrid(1, 1, True), ProcessCounts(1, 1), WITHIN),
        (DeviceGrid(1, 8, True), ProcessCounts(8, 4, 2), WITHIN),
        (
            DeviceGrid(1, 8, True),
            ProcessCounts(2, 8),
            GLOO,
        ),  # rank 0 shares a GPU with an engine, which NCCL refuses
        (DeviceGrid(1, 8, True), ProcessCounts(4, 2, apart=True), NCCL),
        (DeviceGrid(1, 8, True), ProcessCounts(0, 2), HOST),
        (DeviceGrid(1, 4, False), ProcessCounts(2, 2), HOST),
        (DeviceGrid(2, 4, False), ProcessCounts(4, 4, apart=True), GLOO),
    ],
)
def test_weight_transfer_route_follows_device_placement(
    devices: DeviceGrid, processes: ProcessCounts, route: TransferRoute
) -> None:
    placement = RunPlacement.from_devices(devices, processes)
    one_machine = len({place.machine for place in (*placement.ranks, *placement.engines)}) == 1
    assert choose_route(SamplerSection(), placement, one_machine) == route


def test_engines_are_placed_on_distinct_gpus_after_the_learner_gpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As `lockstep.open_sampler` and a judge do."""
    show_gpus(monkeypatch, 8)
    sampler = SamplerSection(backend="vllm", replicas=4, tensor_parallel=2)
    assert [place.devices for place in WorkerPool().place_engines(sampler, Computation())] == [
        (0, 1),
        (2, 3),
        (4, 5),
        (6, 7),
    ]
    run = WorkerPool(
        choose_placement(
            SEPARATE, Computation(), ProcessCounts.from_sections(SEPARATE, 4, SamplerSection())
        )
    )
    assert [
        place.devices for place in run.place_engines(SamplerSection(replicas=3), Computation())
    ] == [
        (4,),
        (5,),
        (6,),
    ]
    with pytest.raises(InputError, match=r"asks for 4 GPUs and .* for 5 × 1, at the same time"):
        run.place_engines(SamplerSection(replicas=5), Computation())
    assert run.engines_apart
    assert not WorkerPool().engines_apart


@pytest.fixture
def many_gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A Ray that believes to have eight GPUs."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(8))))
    ray: Any = pytest.importorskip("ray")
    from lockstep.cluster import ray_transport

    assert ray_transport.ray is ray
    ray.init(num_cpus=8, num_gpus=8, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.mark.full
@pytest.mark.needs("ray")
def test_ray_actors_see_only_their_own_gpus(many_gpus: None) -> None:
    from lockstep.cluster.ray_transport import RayCluster
    from lockstep.config import RaySection

    with WorkerPool() as ending:
        cluster = RayCluster(RaySection(), ProcessCounts(2, 1, 2), gpus=True)
        ending.callback(cluster.close)
        workers = WorkerPool(cluster.placement, cluster)
        places = (*cluster.placement.ranks, *cluster.placement.engines)
        remotes = [
            workers.start_worker(Abacus, f"worker {place}", 400.0, place) for place in places
        ]
        first, second, both = (
            remote.call("variable", "CUDA_VISIBLE_DEVICES") for remote in remotes
        )
        for remote in remotes:
            remote.close()
    assert first != second
    assert both == f"{first},{second}"


def recipe_of(*overrides: str) -> Algorithm:
    return load_recipe("ppo_arithmetic", ["learner.device=auto", *overrides]).expect_recipe(
        Algorithm
    )


TURNS = {
    "one GPU": ((), True),
    "an engine of its own process": (("sampler=vllm",), True),
    "both keep their memory": (("cluster.offload_idle=false",), False),
    "one step ahead": (("ppo.one_step_ahead=true", "ppo.correction.kind=token_tis"), False),
    "GPUs of its own": (("cluster.placement=separate",), False),
    "the CPU": (("learner.device=cpu",), False),
    "a learner without a sampler's GPU": (
        ("learner.parallel.dp=2", "cluster.placement=separate"),
        False,
    ),
}


@pytest.mark.parametrize("case", TURNS)
def test_learner_and_sampler_take_turns_only_if_they_share_gpu_memory(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides, expected = TURNS[case]
    show_gpus(monkeypatch, 8)
    recipe = recipe_of(*overrides)
    assert takes_turns(recipe, plan_placement(recipe)) is expected


def test_placement_uses_the_gpus_visible_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    show_gpus(monkeypatch, 4)
    on, off = Computation(), Computation(device="cpu")
    assert choose_placement(COLOCATED, on, ProcessCounts(4, 4)).devices == DeviceGrid(1, 4, True)
    assert choose_placement(COLOCATED, off, ProcessCounts(8, 3)).devices == DeviceGrid(1, 8, False)
    with pytest.raises(InputError, match="there are 4 GPUs"):
        choose_placement(COLOCATED, on, ProcessCounts(5))
    ray = ClusterSection(backend="ray")
    assert choose_placement(ray, on, ProcessCounts(5)).devices == DeviceGrid(2, 4, True), (
        "others are taken to be like this one"
    )


def test_host_weights_use_shared_memory_or_gloo_route() -> None:
    assert (
        WITHIN.for_host_weights(one_machine=True) == NCCL.for_host_weights(one_machine=True) == HOST
    )
    assert (
        WITHIN.for_host_weights(one_machine=False)
        == NCCL.for_host_weights(one_machine=False)
        == GLOO
    )
    assert (GLOO.for_host_weights(one_machine=True), HOST.for_host_weights(one_machine=True)) == (
        GLOO,
        HOST,
    )
