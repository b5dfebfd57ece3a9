"""A vLLM that is cut over two processes: weights reach both, are proven to be there, and are
computed with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from tiny_models import CONTEXT, SECTION, VOCABULARY
from torch import Tensor

from lockstep.cluster.sampler_pool import SamplerPool
from lockstep.cluster.specs import LearnerSpec, SamplerSpec
from lockstep.config import SamplerSection
from lockstep.core.types import Request, SamplingParams
from lockstep.learners.rank import RankLearner
from lockstep.weight_sync.attestation import WeightAttestation
from lockstep.weight_sync.sync import WeightSyncError, random_probe, sync_weights

pytestmark = [pytest.mark.full, pytest.mark.needs("vllm")]

BY_COLUMNS = "model.layers.1.self_attn.o_proj.weight"
BY_ROWS = "model.layers.0.mlp.up_proj.weight"
ON_BOTH = "model.layers.0.input_layernorm.weight"


class Damaging(SamplerPool):
    """A pool on the way to which one tensor is made another, in its last number alone."""

    victim = ""

    def load_weights(
        self, stream: Iterable[tuple[str, Tensor]], version: int
    ) -> Sequence[WeightAttestation]:
        sent = {name: tensor.clone() for name, tensor in stream}
        if self.victim:
            sent[self.victim].view(-1)[-1] += 0.5
        return super().load_weights(sent.items(), version)


@pytest.fixture(scope="module")
def sampler(vllm: None, models: Callable[..., Path]) -> Iterator[Damaging]:
    section = SamplerSection(
        backend="vllm",
        tensor_parallel=2,
        max_batch_size=8,
        kv_cache_gib=0.05,
        transfer="process_group",
    )
    pool = Damaging(SamplerSpec(str(models("qwen2 tied")), section, SECTION))
    yield pool
    pool.close()


@pytest.fixture
def learner(models: Callable[..., Path]) -> RankLearner:
    learner = LearnerSpec(str(models("qwen2 tied")), "logits", SECTION, None, 0).build()
    draws = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in learner.model.parameters():
            parameter += 0.02 * torch.randn(parameter.shape, generator=draws)
    return learner


def test_tensor_parallel_vllm_holds_and_attests_all_synced_weights(
    learner: RankLearner, sampler: Damaging
) -> None:
    found = sync_weights(learner, sampler, 1, random_probe(VOCABULARY, CONTEXT)).floats()
    assert found["weight_sync/attested"] == len(list(learner.weights()))
    assert found["weight_sync/probe_gap_max"] < 1e-4
    sent = dict(learner.weights())
    for name in (BY_COLUMNS, BY_ROWS, ON_BOTH):
        assert torch.equal(sampler.show(name), sent[name]), name
    batch = sampler.generate(
        [Request((3, 4, 5), key) for key in range(8)], SamplingParams(max_tokens=6)
    )
    gap = (learner.logprobs(batch) - batch["sampler_logprob"])[batch.mask]
    assert gap.abs().max() < 1e-4


@pytest.mark.parametrize("victim", [BY_COLUMNS, BY_ROWS, ON_BOTH])
def test_one_changed_number_is_detected_on_either_tensor_parallel_rank(
    learner: RankLearner, sampler: Damaging, monkeypatch: pytest.MonkeyPatch, victim: str
) -> None:
    monkeypatch.setattr(sampler, "victim", victim)
    with pytest.raises(WeightSyncError, match=victim):
        sync_weights(learner, sampler, 2, random_probe(VOCABULARY, CONTEXT))
