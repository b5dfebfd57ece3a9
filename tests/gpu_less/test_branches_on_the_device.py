"""Every branch on the device in the folders that compute, and the test that takes its GPU side
without a GPU.

A refusal or a shortcut that holds on CPUs alone hides what GPUs do: a new branch fails here until a
test takes it.
"""

from __future__ import annotations

import ast
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pretend_gpu as pretended
import pytest
import torch
import torch.distributed as dist
from gpus import MEMORY, tell_gpus
from tiny_models import OPTIMIZER, SECTION
from torch import Tensor

from lockstep.cluster import learner_group
from lockstep.cluster.learner_group import RankSpec
from lockstep.cluster.specs import LearnerSpec, SamplerSpec
from lockstep.config import LearnerSection, SamplerSection
from lockstep.core.errors import InputError
from lockstep.distributed.meeting import RendezvousAddress, RendezvousHost
from lockstep.distributed.ranks import RankMesh
from lockstep.learners.sending import SendsWeights
from lockstep.samplers.backend import find_backend
from lockstep.samplers.cache_budget import CacheBudget
from lockstep.samplers.vllm.backend import VLLMInference
from lockstep.weight_sync import carriers
from lockstep.weight_sync.buckets import WeightBucket, pack_buckets
from lockstep.weight_sync.carriers import CudaIPC, GroupBroadcast, TransferRoute, unpack_bucket
from lockstep.weight_sync.outgoing import OutgoingWeights
from lockstep.weight_sync.sender import LocalSender

ROOT = Path(__file__).parents[2]
FOLDERS = ("learners", "models", "samplers", "cluster", "weight_sync")
ASKED = {"is_cuda", "is_cpu", "is_available", "is_initialized", "device_count", "device_type"}
KINDS = {"cuda", "cpu", "cuda_ipc", "nccl"}

HERE = "gpu_less/test_branches_on_the_device.py"
TURNS = "gpu_less/test_turns_on_a_gpu.py::test_learner_offload_to_pinned_memory_needs_no_gpu_wait"
BF16 = "learners/test_megatron_in_bf16.py::test_bf16_two_stage_megatron_scores_are_bit_identical_to_one_stage"
IPC = f"{HERE}::test_cuda_ipc_transfers_weights_through_memory_exported_once"
NCCL = f"{HERE}::test_nccl_broadcast_uses_no_host_staging"
GATHERED = f"{HERE}::test_weights_on_gpus_are_gathered_and_sent_by_one_rank_or_by_each"
DRIVER = f"{HERE}::test_the_size_of_a_cache_is_chosen_without_starting_cuda"
FINGERPRINTS = "gpu_less/test_syncs.py::test_fingerprints_on_gpu_match_cpu_and_need_one_wait"
STAGED = (
    "gpu_less/test_syncs.py::test_a_sender_waits_for_each_bucket_once_and_for_its_fingerprints_once"
)
PLACED = "cluster/test_placement.py::test_weight_transfer_route_follows_device_placement"
EXPERTS = "samplers/test_vllm_experts.py::test_reordered_experts_are_read_in_the_loaded_order"
ARGUMENTS = "samplers/test_vllm_arguments.py::test_vllm_options_become_engine_arguments_on_gpu"
ON_GPUS_ALONE = (
    "gpu/test_carriers_on_gpus.py::test_weight_sync_to_engine_on_same_gpu_is_bitwise_equal"
)

BRANCHES = {
    "learners/host_memory.py HostMemory._pair_chunks": TURNS,
    "learners/host_memory.py HostMemory.offload_tensors": TURNS,
    "learners/megatron/backend.py MegatronTraining.require_model": BF16,
    "learners/megatron/on_cpu.py _TorchOfCPU.zeros": BF16,
    "learners/megatron/start.py start_learner": BF16,
    "learners/sending.py SendsWeights._gather_buckets": GATHERED,
    "learners/summing.py compute_ordered_norm": "gpu_less/test_syncs.py::test_dense_model_passes_never_wait_for_gpu",
    "models/device.py empty_cache": "gpu_less/test_turns_on_a_gpu.py::test_learners_are_offloaded_while_engine_samples",
    "models/device.py resolve_device": "gpu_less/test_precision.py::test_a_process_that_computes_on_a_gpu_uses_no_tf32",
    "models/kernels.py run_torch_attention": "gpu_less/test_shared_heads.py::test_fp32_attention_on_gpu_repeats_shared_key_heads",
    "models/laid_out.py LaidOut.to": "gpu_less/test_syncs.py::test_dense_model_passes_never_wait_for_gpu",
    "models/open_kernels.py explain_padding": "models/test_open_kernels.py::test_gpu_with_old_compute_capability_uses_padded_attention",
    "models/open_kernels.py open_kernels": "gpu_less/test_syncs.py::test_bf16_moe_layer_with_fp32_weights_never_waits_for_gpu",
    "models/parallelize.py parallelize_model": f"{HERE}::test_offloaded_shards_are_pinned_for_a_gpu",
    "samplers/vllm/backend.py VLLMInference.packs_weights": DRIVER,
    "samplers/vllm/backend.py VLLMInference.require_installed": DRIVER,
    "samplers/vllm/readback.py is_packed": EXPERTS,
    "samplers/vllm/sampler.py VLLMSampler.__init__": ARGUMENTS,
    "samplers/vllm/worker.py WeightReceiver.attest_weights": ON_GPUS_ALONE,
    "samplers/vllm/worker.py module": ON_GPUS_ALONE,
    "cluster/learner_group.py RankSpec.build": f"{HERE}::test_rank_joins_nccl_on_its_local_gpu",
    "cluster/placement.py choose_placement": "cluster/test_placement.py::"
    "test_placement_uses_the_gpus_visible_to_torch",
    "cluster/ray_transport.py join_cluster": PLACED,  # asks for Ray, not for a device
    "cluster/sampler_pool.py SamplerPool._open_routes": ON_GPUS_ALONE,
    "cluster/self_check.py _describe_machine": "gpu_less/test_precision.py::test_run_prints_and_records_fp32_precision",
    "cluster/specs.py SamplerSpec.build": DRIVER,
    "cluster/specs.py require_sampler": DRIVER,
    "weight_sync/carriers.py CudaIPC.bucket_memory": IPC,
    "weight_sync/carriers.py GroupBroadcast.__init__": NCCL,
    "weight_sync/carriers.py TransferRoute.is_between_gpus": "cluster/test_placement.py::"
    "test_host_weights_use_shared_memory_or_gloo_route",
    "weight_sync/carriers.py _ThroughHost._stage_bucket": STAGED,
    "weight_sync/carriers.py _require_gpu": IPC,
    "weight_sync/carriers.py open_carrier": IPC,
    "weight_sync/fingerprints.py _sum_lanes": FINGERPRINTS,
    "weight_sync/fingerprints.py start_fingerprint": FINGERPRINTS,
    "weight_sync/outgoing.py OutgoingWeights.on_gpu": f"{HERE}::test_outgoing_weights_report_whether_they_are_on_gpu",
    "weight_sync/sender.py LocalSender.free_buckets": IPC,
}
"""By file and function, the test that takes the side of GPUs; one in `gpu/` needs a GPU."""


def asks_for_device(node: ast.AST) -> bool:
    """True for an expression that tells a GPU from a CPU."""
    if isinstance(node, ast.Attribute):
        return node.attr in ASKED
    if isinstance(node, ast.MatchValue):
        return isinstance(node.value, ast.Constant) and node.value.value in KINDS
    if not isinstance(node, ast.Compare):
        return False
    sides = (node.left, *node.comparators)
    named = any(isinstance(side, ast.Constant) and side.value in KINDS for side in sides)
    return named or any(
        isinstance(side, ast.Attribute) and ast.unparse(side).endswith("device.type")
        for side in sides
    )


def find_branches(text: str) -> set[str]:
    """The functions that ask for the device, by qualified name."""

    def visit(node: ast.AST, name: str) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            is_scope = isinstance(child, ast.FunctionDef | ast.ClassDef)
            inside = f"{name}.{child.name}".lstrip(".") if is_scope else name
            if asks_for_device(child):
                yield inside or "module"
            yield from visit(child, inside)

    return set(visit(ast.parse(text), ""))


def test_every_device_branch_is_listed_with_a_test() -> None:
    found = set[str]()
    for folder in FOLDERS:
        for path in sorted((ROOT / "lockstep" / folder).rglob("*.py")):
            file = path.relative_to(ROOT / "lockstep").as_posix()
            found |= {f"{file} {name}" for name in find_branches(path.read_text(encoding="utf-8"))}
    assert found == BRANCHES.keys(), (
        "name the test that takes the side of GPUs of a new branch, or take out an old one"
    )


@pytest.mark.parametrize("evidence", sorted(set(BRANCHES.values())))
def test_listed_test_of_device_branch_exists(evidence: str) -> None:
    file, name = evidence.split("::")
    assert f"def {name}(" in (ROOT / "tests" / file).read_text(encoding="utf-8")


def test_device_branches_are_detected_in_every_syntax() -> None:
    asking = [
        "x.is_cuda",
        "d.type == 'cuda'",
        "a.device.type != b.device.type",
        "torch.cuda.is_available()",
    ]
    for expression in asking:
        assert find_branches(f"class A:\n    def f(self):\n        return {expression}") == {"A.f"}
    assert find_branches("match kind:\n    case 'nccl':\n        pass") == {"module"}
    assert not find_branches("def f(x):\n    return x.type == 'llama'")


class Holder(SendsWeights):
    """A rank that gathers whole tensors, on a GPU or what passes for one."""

    def __init__(self, rank: int, tensors: dict[str, Tensor]) -> None:
        self._ranks = cast(RankMesh, SimpleNamespace(rank_number=rank, rank_count=2))
        self.device, self._tensors, self.gathered = torch.device("cuda"), tensors, 0

    def weights(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self._tensors.items():
            self.gathered += 1
            yield name, tensor


def fill(rank: Holder, route: TransferRoute) -> list[WeightBucket]:
    """Lets a rank send all its weights."""
    rank.join_receivers(route)
    rank.begin_sending(torch.float32, columns=False)
    buckets = list[WeightBucket]()
    while (shipment := rank.fill_bucket()).bucket is not None:
        buckets.append(shipment.bucket)
    return buckets


def tensors_of(seed: int) -> dict[str, Tensor]:
    draws = torch.Generator().manual_seed(seed)
    return {name: torch.randn(5, 7, generator=draws) for name in ("a", "b")}


@pytest.fixture
def ipc(monkeypatch: pytest.MonkeyPatch) -> dict[str, Tensor]:
    """Handles of memory that one process has exported, by name; the GPU's name does not come from a
    driver.
    """
    exported = dict[str, Tensor]()

    def export(flat: Tensor) -> str:
        handle = f"memory {len(exported)}"
        exported[handle] = flat
        return handle

    monkeypatch.setattr(carriers, "_export_handle", export)
    monkeypatch.setattr(carriers, "_open_exported", lambda handle, _: exported[handle])
    monkeypatch.setattr(carriers, "name_gpu", lambda device: f"GPU {device.index or 0}")
    return exported


def test_cuda_ipc_transfers_weights_through_memory_exported_once(ipc: dict[str, Tensor]) -> None:
    sent = tensors_of(0)
    with pretended.pretend_gpu():
        sender, receiver = LocalSender(), CudaIPC()
        sender.open_route(TransferRoute("cuda_ipc"))
        there = {name: tensor.to("cuda") for name, tensor in sent.items()}
        for _ in range(2):
            held = dict[str, Tensor]()
            for bucket in sender.fill_buckets(
                OutgoingWeights.wrap_stream(there.items()), columns=False
            ):
                assert bucket.handles.keys() == {"GPU 0"}
                held |= {
                    name: tensor.cpu()
                    for name, tensor in unpack_bucket(receiver, bucket, pretended.GPU)
                }
            assert all(torch.equal(held[name], tensor) for name, tensor in sent.items())
        sender.free_buckets()
        assert len(ipc) == 1, "memory is exported once"
        with pytest.raises(InputError, match="needs weights on a GPU, but these are on cpu"):
            list(sender.fill_buckets(OutgoingWeights.wrap_stream(sent.items()), columns=False))


@pytest.mark.parametrize(("transfer", "exports"), [("shared_memory", 0), ("cuda_ipc", 2)])
def test_weights_on_gpus_are_gathered_and_sent_by_one_rank_or_by_each(
    ipc: dict[str, Tensor], transfer: Any, exports: int
) -> None:
    sent = tensors_of(1)
    with pretended.pretend_gpu():
        there = {name: tensor.to("cuda") for name, tensor in sent.items()}
        ranks = [Holder(number, there) for number in range(2)]
        route = TransferRoute(
            transfer, ranks[0]._local_sender.file_paths if transfer == "shared_memory" else ()
        )
        filled = [fill(rank, route)[0] for rank in ranks]
        for rank, bucket in zip(ranks, filled, strict=True):
            assert rank.gathered == len(sent), "all ranks take part"
            assert len(bucket.handles) == (transfer == "cuda_ipc")
        assert len(ipc) == exports, "by CUDA IPC, every rank exports memory of its own GPU"
        if transfer == "shared_memory":
            held = dict(unpack_bucket(carriers.open_carrier(route), filled[0], torch.device("cpu")))
            assert all(torch.equal(held[name], tensor) for name, tensor in sent.items())


def test_nccl_broadcast_uses_no_host_staging(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL's route by gloo: buffers are on the tensors' device at both ends, and no copy is made
    before a broadcast.
    """
    join = carriers._join_group
    monkeypatch.setattr(carriers, "_join_group", lambda meeting, backend: join(meeting, "gloo"))
    host, held = RendezvousHost("127.0.0.1", 2, 60.0), dict[str, Tensor]()
    sent, told = tensors_of(2), list[WeightBucket]()
    ready = threading.Event()

    def receive() -> None:
        receiver = GroupBroadcast(host.meeting.for_rank(1), "nccl")
        ready.wait(60.0)
        held.update(
            {
                name: tensor.clone()
                for name, tensor in unpack_bucket(receiver, told[0], torch.device("cpu"))
            }
        )

    thread = threading.Thread(target=receive)
    thread.start()
    sender = GroupBroadcast(host.meeting, "nccl")
    flat = sender.bucket_memory(0, 2 * 192, torch.device("cpu"))
    ((parts, _),) = pack_buckets((name, tensor, tensor.dtype) for name, tensor in sent.items())
    for part, tensor in zip(parts, sent.values(), strict=True):
        part.view_in(flat).copy_(tensor)
    told.append(sender.seal_bucket(0, parts))
    ready.set()
    sender.ship_bucket(told[0])
    thread.join(60.0)
    assert sender._sent is sender._staged
    assert all(torch.equal(held[name], tensor) for name, tensor in sent.items())


def test_dead_engine_aborts_nccl_broadcast_after_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By NCCL, a broadcast to a dead engine never completes, and whatever waits on its stream never
    returns.
    """

    class Stuck:
        """A process group with a dead member, and its work."""

        aborted = False

        def broadcast(self, *_: object) -> Stuck:
            return self

        def is_completed(self) -> bool:
            return False

        def wait(self) -> None:
            raise AssertionError("a stream that waits cannot be left")

        def abort(self) -> None:
            self.aborted = True

    group = Stuck()
    monkeypatch.setattr(carriers, "_join_group", lambda *_: group)
    sender = GroupBroadcast(RendezvousAddress("127.0.0.1", 1, 0, 2, timeout_s=0.05), "nccl")
    sender.bucket_memory(3, 64, torch.device("cpu"))
    with pytest.raises(RuntimeError, match=r"bucket 3 did not reach all engines within 0\.05 s"):
        sender.ship_bucket(sender.seal_bucket(3, ()))
    assert group.aborted


def test_outgoing_weights_report_whether_they_are_on_gpu() -> None:
    with pretended.pretend_gpu():
        assert OutgoingWeights(lambda: iter([("a", torch.zeros(2, device="cuda"))]), None).on_gpu
        assert not OutgoingWeights(lambda: iter([("a", torch.zeros(2))]), None).on_gpu


def test_rank_joins_nccl_on_its_local_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    tell_gpus(monkeypatch, 2)
    chosen, joined, built = list[int](), list[str](), list[str]()
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **_: joined.append(backend))
    monkeypatch.setattr(RendezvousAddress, "open_store", lambda _: None)
    monkeypatch.setattr(
        learner_group.RankMesh, "from_sizes", lambda device, _: built.append(device)
    )
    monkeypatch.setattr(LearnerSpec, "build", lambda *_: None)
    section = SECTION.model_copy(update={"device": "auto"})
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    RankSpec(
        LearnerSpec("m", "logits", section, OPTIMIZER, 0),
        RendezvousAddress("127.0.0.1", 1, 3, 4, 1.0),
    ).build()
    assert (chosen, joined, built) == ([1], ["cuda:nccl,cpu:gloo"], ["cuda"])


def test_the_size_of_a_cache_is_chosen_without_starting_cuda(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The engine's parent must not start CUDA: it would keep an idle context on the GPU."""
    tell_gpus(monkeypatch, 1)

    def start(*_: object) -> None:
        raise AssertionError("this starts CUDA")

    monkeypatch.setattr(torch.cuda, "get_device_properties", start)
    monkeypatch.setattr(torch.cuda, "_lazy_init", start)
    monkeypatch.setattr(VLLMInference, "read_gpu_memory", lambda _: MEMORY)
    opened = list[SamplerSection]()
    monkeypatch.setattr(
        VLLMInference, "build_sampler", lambda _, folder, section, *__: opened.append(section)
    )
    section, learner = SamplerSection(backend="vllm"), LearnerSection()
    SamplerSpec("m", section, learner, budget=CacheBudget(2 * 10**9, 10**9, 3 * 10**9)).build()
    assert opened[0].kv_cache_gib == 2 * 10**9 / 2**30
    backend = find_backend(section)
    assert backend is not None
    assert not backend.packs_weights(learner)
    monkeypatch.setattr("importlib.util.find_spec", lambda *_: object())
    backend.require_installed(section, on_gpu=True)
    with pytest.raises(InputError, match="uses the GPU if available"):
        backend.require_installed(section, on_gpu=False)


def test_offloaded_shards_are_pinned_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    from lockstep.models import parallelize as module

    policies = list[Any]()

    class StopHere(Exception):
        """Ends before anything is cut."""

    def note(*_: object, offload_policy: Any, **__: object) -> None:
        policies.append(offload_policy)
        raise StopHere

    monkeypatch.setattr(module, "fully_shard", note)
    for kind in ("cuda", "cpu"):
        monkeypatch.setattr(
            module, "_fsdp_mesh", lambda _, kind=kind: SimpleNamespace(device_type=kind)
        )
        ranks = SimpleNamespace(mesh=object(), size=lambda name: 2 if name == "dp" else 1)
        lm = torch.nn.Linear(2, 2)
        monkeypatch.setattr(module, "list_layers", lambda network: [network])
        with pytest.raises(StopHere):
            module.parallelize_model(
                lm,
                cast(Any, lm),
                cast(Any, ranks),
                SECTION.model_copy(update={"cpu_offload": True}),
            )
    assert [policy.pin_memory for policy in policies] == [True, False]
