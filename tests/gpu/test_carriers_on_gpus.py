"""Carriers between processes on GPUs: what a receiver takes is what the sender wrote.

Not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch
from tiny_models import SECTION

from lockstep.cluster.sampler_pool import SamplerPool
from lockstep.cluster.specs import LearnerSpec, SamplerSpec
from lockstep.config import SamplerSection
from lockstep.core.errors import InputError
from lockstep.learners.rank import RankLearner
from lockstep.weight_sync import buckets
from lockstep.weight_sync.carriers import TransferRoute, open_carrier
from lockstep.weight_sync.fingerprints import fingerprint_tensor
from lockstep.weight_sync.outgoing import OutgoingWeights
from lockstep.weight_sync.sync import sync_weights

pytestmark = pytest.mark.gpu
ON_GPU = SECTION.model_copy(update={"device": "cuda"})
SECOND = pytest.mark.skipif(
    torch.cuda.device_count() < 2, reason="NCCL has no two ends on one GPU; it takes two"
)


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "CAPACITY", 1 << 14)


@pytest.fixture
def learner(models: Callable[..., Path]) -> RankLearner:
    return LearnerSpec(str(models("llama")), "logits", ON_GPU, None, 0).build()


@pytest.fixture(params=["cuda_ipc", "shared_memory", "process_group"])
def pool(request: pytest.FixtureRequest, models: Callable[..., Path]) -> Iterator[SamplerPool]:
    section = SamplerSection.model_validate({"transfer": request.param, "max_batch_size": 4})
    with closing(SamplerPool(SamplerSpec(str(models("llama", seed=1)), section, ON_GPU))) as pool:
        yield pool


@pytest.mark.timeout(300)
def test_weight_sync_to_engine_on_same_gpu_is_bitwise_equal(
    learner: RankLearner, pool: SamplerPool
) -> None:
    for version in (1, 2, 3):
        with torch.no_grad():
            for parameter in learner.model.parameters():
                parameter.mul_(1.0 + 0.01 * version)
        assert sync_weights(learner, pool, version).floats()["weight_sync/read_whole"]
    for name, tensor in learner.weights():
        assert torch.equal(pool.show(name).cpu(), tensor.detach().cpu())


@pytest.mark.timeout(300)
def test_fingerprints_reveal_one_changed_weight(learner: RankLearner, pool: SamplerPool) -> None:
    sync_weights(learner, pool, 1)
    (held,) = pool.load_weights(OutgoingWeights(learner.weights, torch.float32), 2)
    with torch.no_grad():
        next(learner.model.parameters()).view(-1)[3] += 1e-3
    differ = [
        name
        for name, tensor in learner.weights()
        if held.fingerprints[name] != fingerprint_tensor(tensor)
    ]
    assert len(differ) == 1


def test_gpu_fingerprints_equal_cpu_fingerprints() -> None:
    for shape in ((5, 7), (3, 70_001), (260, 16 * 3067)):
        for kind in (torch.float32, torch.bfloat16):
            made = torch.randn(shape).to(kind)
            assert fingerprint_tensor(made.cuda()) == fingerprint_tensor(made)


def test_cuda_ipc_rejects_bucket_of_another_gpu() -> None:
    with pytest.raises(InputError, match="needs a learner rank on each engine's GPU"):
        open_carrier(TransferRoute("cuda_ipc")).receive_bytes(
            buckets.WeightBucket(0, 8, (), {"GPU-other": ""}), torch.device("cuda", 0)
        )


@SECOND
@pytest.mark.timeout(300)
def test_nccl_syncs_weights_to_engine_on_another_gpu(
    learner: RankLearner, models: Callable[..., Path]
) -> None:
    """Rank 0 is this process, on GPU 0; the engine has GPU 1 to itself."""
    from lockstep.cluster.placement import DeviceGrid, ProcessCounts, RunPlacement
    from lockstep.cluster.workers import WorkerPool

    placement = RunPlacement.from_devices(
        DeviceGrid(1, 2, on_gpu=True), ProcessCounts(1, 1, apart=True)
    )
    section = SamplerSection.model_validate({"transfer": "auto", "max_batch_size": 4})
    with WorkerPool(placement) as workers:
        assert workers.choose_route(section) == TransferRoute("process_group", backend="nccl")
        with closing(
            SamplerPool(SamplerSpec(str(models("llama", seed=1)), section, ON_GPU), workers)
        ) as pool:
            assert sync_weights(learner, pool, 1).floats()["weight_sync/read_whole"]
