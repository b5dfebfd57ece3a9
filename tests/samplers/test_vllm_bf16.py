"""vLLM in bf16, of a model with norms on queries and keys, and with raw log-probabilities."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from tiny_models import CONTEXT, VOCABULARY

from lockstep.cluster.sampler_pool import SamplerPool
from lockstep.cluster.specs import LearnerSpec, SamplerSpec
from lockstep.config import LearnerSection, SamplerSection
from lockstep.learners.rank import RankLearner
from lockstep.weight_sync.sync import random_probe, sync_weights

pytestmark = [pytest.mark.full, pytest.mark.needs("vllm")]

BF16 = LearnerSection(device="cpu", dtype="bf16")


@pytest.fixture(scope="module")
def sampler(vllm: None, models: Callable[..., Path]) -> Iterator[SamplerPool]:
    section = SamplerSection(backend="vllm", max_batch_size=8, kv_cache_gib=0.05)
    replicas = SamplerPool(SamplerSpec(str(models("qwen3")), section, BF16))
    yield replicas
    replicas.close()


@pytest.fixture(scope="module")
def learner(models: Callable[..., Path]) -> RankLearner:
    return LearnerSpec(str(models("qwen3", seed=1)), "logits", BF16, None, 0).build()


def test_bf16_vllm_weights_are_attested_in_sampler_dtype(
    learner: RankLearner, sampler: SamplerPool
) -> None:
    assert sampler.dtype == torch.bfloat16
    values = sync_weights(learner, sampler, 1, random_probe(VOCABULARY, CONTEXT, "bf16")).floats()
    assert values["weight_sync/attested"] == len(dict(learner.weights()))
    assert values["weight_sync/probe_gap"] < 0.1
