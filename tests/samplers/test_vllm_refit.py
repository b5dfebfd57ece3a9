"""What can go wrong with weights on their way to vLLM: each fault is caught, by name."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from forgetful import ForgetfulSpec
from tiny_models import CONTEXT, SECTION, VOCABULARY
from torch import Tensor

from lockstep.cluster.sampler_pool import SamplerPool
from lockstep.cluster.specs import LearnerSpec
from lockstep.config import SamplerSection
from lockstep.core.batch import Batch
from lockstep.core.metrics import Metrics
from lockstep.core.types import Request, SamplingParams
from lockstep.learners.rank import RankLearner
from lockstep.samplers.base import ResponsePiece, Sampler
from lockstep.weight_sync.attestation import WeightAttestation
from lockstep.weight_sync.sync import (
    OutgoingWeights,
    WeightSyncError,
    find_differences,
    random_probe,
    sync_weights,
)

pytestmark = pytest.mark.needs("vllm")

EMBEDDING = "model.embed_tokens.weight"
SQUARE = "model.layers.1.self_attn.o_proj.weight"
NORM = "model.layers.0.input_layernorm.weight"
PART = "model.layers.0.mlp.up_proj.weight"
BIAS = "model.layers.0.self_attn.k_proj.bias"
SEEDS = itertools.count(1)

TAMPERED: dict[str, Callable[[str, Tensor], Tensor | None]] = {
    "skipped": lambda name, tensor: None,
    "stale": lambda name, tensor: tensor - 0.01,
    "transposed": lambda name, tensor: tensor.T,
    "cast": lambda name, tensor: tensor.bfloat16().float(),
}


class Tampering(Sampler):
    """A sampler on the way to which one tensor is damaged."""

    def __init__(
        self, sampler: SamplerPool, victim: str, fault: Callable[[str, Tensor], Tensor | None]
    ) -> None:
        self._sampler, self._victim, self._fault = sampler, victim, fault

    @property
    def dtype(self) -> torch.dtype:
        return self._sampler.dtype

    @property
    def version(self) -> int | None:
        return self._sampler.version

    def pieces(
        self, requests: Sequence[Request], sampling: SamplingParams
    ) -> Iterator[ResponsePiece]:
        return self._sampler.pieces(requests, sampling)

    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> Batch:
        return self._sampler.generate(requests, sampling)

    def logprobs(self, batch: Batch) -> Tensor:
        return self._sampler.logprobs(batch)

    def logprobs_of_each(self, batch: Batch) -> Sequence[Tensor]:
        return self._sampler.logprobs_of_each(batch)

    def show(self, name: str) -> Tensor:
        return self._sampler.show(name)

    def wake(self) -> None:
        self._sampler.wake()

    def sleep(self) -> None:
        self._sampler.sleep()

    def load_weights(
        self, stream: Iterable[tuple[str, Tensor]], version: int
    ) -> list[WeightAttestation]:
        return list(self._sampler.load_weights(dict(self._damaged(stream)).items(), version))

    def _damaged(self, stream: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in stream:
            sent = self._fault(name, tensor) if name == self._victim else tensor
            if sent is not None:
                yield name, sent


@pytest.fixture(scope="module")
def sampler(vllm: None, models: Callable[..., Path]) -> Iterator[SamplerPool]:
    section = SamplerSection(backend="vllm", max_batch_size=8, kv_cache_gib=0.05)
    replicas = SamplerPool(ForgetfulSpec(str(models("qwen2 tied")), section, SECTION))
    yield replicas
    replicas.close()


@pytest.fixture
def learner(models: Callable[..., Path]) -> RankLearner:
    """Another one for each test: whatever the sampler held before, every tensor is now a little
    different.
    """
    learner = LearnerSpec(str(models("qwen2 tied")), "logits", SECTION, None, 0).build()
    draws = torch.Generator().manual_seed(next(SEEDS))
    with torch.no_grad():
        for parameter in learner.model.parameters():
            parameter += 0.02 * torch.randn(parameter.shape, generator=draws)
    return learner


@pytest.fixture
def forgetting(sampler: SamplerPool) -> Iterator[Callable[[str], object]]:
    yield lambda what: sampler.remotes[0].call("forget", what)
    sampler.remotes[0].call("forget", "")


def refitted(learner: RankLearner, sampler: Sampler) -> Metrics:
    return sync_weights(learner, sampler, 1, random_probe(VOCABULARY, CONTEXT))


def test_vllm_weight_sync_attests_every_tensor(learner: RankLearner, sampler: SamplerPool) -> None:
    values = refitted(learner, sampler).floats()
    names = [name for name, _ in learner.weights()]
    assert values["weight_sync/attested"] == len(names)
    matrices = [name for name in names if name.endswith("proj.weight")]
    buffers = [name for name in names if "inv_freq" in name]
    # the head, too, which is tied to the embedding
    assert values["weight_sync/read_in_part"] == len(matrices) + 1
    assert values["weight_sync/received_only"] == len(buffers) > 0
    assert values["weight_sync/read_whole"] == len(names) - len(matrices) - len(buffers)
    assert values["weight_sync/probe_gap_max"] < 1e-4


@pytest.mark.parametrize(
    ("fault", "victim"),
    [
        ("transposed", SQUARE),
        *itertools.product(("skipped", "stale", "cast"), (SQUARE, NORM, EMBEDDING)),
    ],
)
def test_tensor_damaged_in_weight_sync_is_named_alone(
    learner: RankLearner, sampler: SamplerPool, fault: str, victim: str
) -> None:
    with pytest.raises(WeightSyncError, match=victim.replace(".", r"\.")) as caught:
        refitted(learner, Tampering(sampler, victim, TAMPERED[fault]))
    others = {name for name, _ in learner.weights()} - {victim}
    assert not [name for name in others if name in str(caught.value)]


@pytest.mark.parametrize("victim", [SQUARE, NORM, PART, BIAS])
def test_tensor_received_but_unused_by_engine_is_named(
    learner: RankLearner, sampler: SamplerPool, forgetting: Callable[[str], object], victim: str
) -> None:
    forgetting(victim)
    with pytest.raises(WeightSyncError, match=victim.replace(".", r"\.")):
        refitted(learner, sampler)


def test_stale_tied_head_is_named_after_weight_sync(
    learner: RankLearner, sampler: SamplerPool, forgetting: Callable[[str], object]
) -> None:
    refitted(learner, sampler)
    with torch.no_grad():
        dict(learner.model.named_parameters())[f"lm.{EMBEDDING}"].mul_(1.1)
    forgetting("tied head")
    with pytest.raises(
        WeightSyncError,
        match=r"differ from those sent by the learner: lm_head\.weight \(arrived, but",
    ):
        refitted(learner, sampler)


def test_prefix_cache_kept_through_weight_sync_is_named(
    learner: RankLearner, sampler: SamplerPool, forgetting: Callable[[str], object]
) -> None:
    forgetting("prefix cache")
    with pytest.raises(WeightSyncError, match=r"prefix cache \(was not dropped\)"):
        refitted(learner, sampler)


def test_probe_detects_different_rotary_tables_despite_equal_weights(
    learner: RankLearner, sampler: SamplerPool
) -> None:
    """The engine makes its rotary tables itself, so a learner with others has the same weights and
    other numbers.
    """
    learner.model.get_buffer("lm.model.rotary_emb.inv_freq").mul_(2.0)
    outgoing = OutgoingWeights(learner.weights, torch.float32)
    (held,) = sampler.load_weights(outgoing, 2)
    assert not find_differences(outgoing.sent_fingerprints, held)
    with pytest.raises(
        WeightSyncError, match=r"weights are equal, but .* disagree on log-probabilities"
    ):
        refitted(learner, sampler)
