"""Ranks that leave for the host's memory between their verbs: the same numbers to the bit as those
that stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch
from killing import assert_same
from tiny_models import OPTIMIZER, ragged
from twins import section

from lockstep.cluster.learner_group import MeshLearner, launch_learner
from lockstep.cluster.sampler_pool import SamplerPool
from lockstep.cluster.specs import LearnerSpec, SamplerSpec
from lockstep.cluster.turns import DeviceTurns
from lockstep.config import LoRA, SamplerSection
from lockstep.core.types import Request, SamplingParams
from lockstep.distributed.ranks import ALONE, RankMesh
from lockstep.learners.base import train
from lockstep.learners.rank import RankLearner
from lockstep.losses.cross_entropy import CrossEntropyLoss
from lockstep.rollouts.sampler_session import SamplerSession

pytestmark = pytest.mark.needs("gloo")
Models = Callable[[str], Path]
LAYOUTS = {
    "dp2": ("qwen2 tied", section("torch", dp=2)),
    "dp2 with adapters": (
        "llama",
        section("torch", dp=2).model_copy(update={"lora": LoRA(rank=3, alpha=12)}),
    ),
    "tp2": ("llama", section("torch", tp=2)),
    "megatron tp2": ("llama", section("megatron", tp=2)),
}


class CountedSpec(LearnerSpec):
    """A learner with one more verb."""

    def build(self, ranks: RankMesh = ALONE) -> RankLearner:
        learner = super().build(ranks)
        setattr(learner, "count_bytes", partial(count_bytes, learner))  # noqa: B010 -- it has no such attribute
        return learner


def count_bytes(learner: RankLearner) -> int:
    """Bytes of weights and moments that a rank has on its device."""
    assert learner._optimizer is not None
    return sum(
        tensor.untyped_storage().nbytes()
        for tensor in (*learner._weights, *learner._optimizer.list_tensors())
    )


def bytes_of(learner: MeshLearner) -> list[int]:
    return learner.wait_for_ranks([rank.submit("count_bytes") for rank in learner.ranks])


def save(learner: MeshLearner, folder: Path) -> None:
    learner.save(folder)
    assert learner.poll_save(wait=True)


@dataclass(frozen=True)
class Started:
    """Ranks, and the folder of their first state."""

    learner: MeshLearner
    first: Path


@pytest.fixture(
    scope="module",
    params=[
        "dp2",
        pytest.param("dp2 with adapters", marks=pytest.mark.full),
        pytest.param("tp2", marks=pytest.mark.full),
        pytest.param("megatron tp2", marks=[pytest.mark.full, pytest.mark.needs("megatron")]),
    ],
)
def started(
    request: pytest.FixtureRequest, models: Models, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Started]:
    kind, how = LAYOUTS[request.param]
    first = tmp_path_factory.mktemp("first")
    learner = launch_learner(
        CountedSpec(str(models(kind)), "logits", how, OPTIMIZER, 0), timeout_s=400.0
    )
    save(learner, first)
    yield Started(learner, first)
    learner.close()


def test_offloading_ranks_between_calls_gives_bit_identical_training(
    started: Started, tmp_path: Path
) -> None:
    learner, batches = (
        started.learner,
        [ragged((7, 2, 19, 4, 33, 12, 9, 3), seed) for seed in range(3)],
    )
    stayed = [
        (learner.logprobs(batch), train(learner, batch, CrossEntropyLoss()).floats())
        for batch in batches
    ]
    save(learner, tmp_path / "stayed")
    learner.offload()
    learner.load(started.first)
    for batch, (logprob, metrics) in zip(batches, stayed, strict=True):
        learner.offload()
        assert bytes_of(learner) == [0, 0]
        assert torch.equal(learner.logprobs(batch), logprob)
        learner.offload()
        assert train(learner, batch, CrossEntropyLoss()).floats() == metrics
        assert min(bytes_of(learner)) > 0
    learner.offload()
    away = {name: tensor.clone() for name, tensor in learner.weights()}
    assert bytes_of(learner) == [0, 0], "weights are lent for a weight sync, one by one"
    save(learner, tmp_path / "left")
    for file in (tmp_path / "stayed").iterdir():
        assert file.read_bytes() == (tmp_path / "left" / file.name).read_bytes(), file.name
    learner.offload()
    learner.load(tmp_path / "left")
    expected = train(learner, batches[0], CrossEntropyLoss()).floats()
    learner.load(tmp_path / "stayed")
    # last of all: a CPU's tensor that was sent cannot leave any more
    assert_same(dict(learner.weights()), away)
    assert train(learner, batches[0], CrossEntropyLoss()).floats() == expected


@pytest.mark.full
def test_weight_sync_attests_weights_of_offloaded_ranks(models: Models) -> None:
    folder, how = str(models("llama")), section("torch", dp=2)
    turns = DeviceTurns()
    learner = launch_learner(
        CountedSpec(folder, "logits", how, OPTIMIZER, 0), timeout_s=400.0, begin=turns.begin_work
    )
    turns.add_learner(learner)
    pools = list[SamplerPool]()

    def start() -> SamplerPool:
        pools.append(SamplerPool(SamplerSpec(folder, SamplerSection(max_batch_size=4), how)))
        return pools[0]

    try:
        session = SamplerSession(turns.start_engine(start), learner)
        for version in range(2):
            with session.at(version) as sync_metrics:
                session.generate([Request((3, 4), 1)], SamplingParams(max_tokens=2))
                assert bytes_of(learner) == [0, 0]
            assert sync_metrics.floats()["weight_sync/attested"] > 0
            train(learner, ragged((7, 2, 19)), CrossEntropyLoss())
    finally:
        learner.close()
        for pool in pools:
            pool.close()
