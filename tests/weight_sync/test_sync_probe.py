"""Equal bits are not enough: engines score a probe as the learner does, at the first sync and every
n-th after it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_models import CONTEXT, SECTION, VOCABULARY
from torch import Tensor

from lockstep.cluster.specs import LearnerSpec
from lockstep.core.batch import Batch
from lockstep.learners.rank import RankLearner
from lockstep.models.load import load_causal_lm
from lockstep.rollouts.sampler_session import PROBE_EVERY, SamplerSession
from lockstep.samplers.torch.sampler import TorchSampler
from lockstep.weight_sync.sync import WeightSyncError, random_probe, sync_weights

PROBE = random_probe(VOCABULARY, CONTEXT)


class CountingSampler(TorchSampler):
    """Counts probes; from some version on, log-probabilities are 0.7 nats off, with all weights
    right.
    """

    probes, off_from = 0, 1 << 30

    def logprobs(self, batch: Batch) -> Tensor:
        self.probes += 1
        return super().logprobs(batch) - 0.7 * ((self.version or 0) >= self.off_from)


@pytest.fixture
def learner(models: Callable[..., Path]) -> RankLearner:
    return LearnerSpec(str(models("llama", seed=1)), "logits", SECTION, None, 0).build()


@pytest.fixture
def sampler(models: Callable[..., Path]) -> CountingSampler:
    return CountingSampler(load_causal_lm(models("llama")), 4)


def test_probe_rejects_engine_with_equal_weights_but_different_logprobs(
    learner: RankLearner, sampler: CountingSampler
) -> None:
    assert sync_weights(learner, sampler, 1, PROBE).floats()["weight_sync/probe_gap"] < 1e-5
    sampler.off_from = 2
    assert sync_weights(learner, sampler, 2).floats()["weight_sync/read_whole"], (
        "without a probe nobody sees it"
    )
    with pytest.raises(
        WeightSyncError, match=r"weights are equal, but learner and sampler 1 .* 0\.7 nats"
    ):
        sync_weights(learner, sampler, 3, PROBE)


def test_session_probes_its_first_and_every_nth_weight_sync(
    learner: RankLearner, sampler: CountingSampler
) -> None:
    session, seen, told = SamplerSession(sampler, learner, PROBE), list[int](), list[int]()
    for version in range(3, 2 * PROBE_EVERY + 2):
        before = sampler.probes
        with session.at(version) as metrics:
            seen += [version] if sampler.probes > before else []
            told += [version] if "weight_sync/probe_gap" in metrics else []
    assert seen == [3, PROBE_EVERY, 2 * PROBE_EVERY]
    assert told == [PROBE_EVERY, 2 * PROBE_EVERY], "rows do not tell where a run was resumed"


def test_wrong_engine_logprobs_raise_at_nth_weight_sync(
    learner: RankLearner, sampler: CountingSampler
) -> None:
    session = SamplerSession(sampler, learner, PROBE)
    sampler.off_from = 1

    def sync_all() -> None:
        for version in range(2 * PROBE_EVERY):
            with session.at(version):
                pass

    with pytest.raises(WeightSyncError, match="after weight sync 10 the weights are equal"):
        sync_all()


def test_the_learner_scores_before_the_engine_takes_memory(
    learner: RankLearner, models: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    order, score = list[str](), learner.logprobs

    class Noting(CountingSampler):
        def wake(self) -> None:
            order.append("wake")
            super().wake()

    monkeypatch.setattr(learner, "logprobs", lambda batch: order.append("score") or score(batch))
    with SamplerSession(Noting(load_causal_lm(models("llama")), 4), learner, PROBE).at(0):
        assert order == ["score", "wake"]


def test_bf16_probe_accepts_gap_from_bf16_rounding(models: Callable[..., Path]) -> None:
    section = SECTION.model_copy(update={"dtype": "bf16"})
    learner = LearnerSpec(str(models("llama", seed=1)), "logits", section, None, 0).build()
    probe = random_probe(VOCABULARY, CONTEXT, "bf16")
    exact = TorchSampler(load_causal_lm(models("llama")), 4)
    assert 0.001 < sync_weights(learner, exact, 1, probe).floats()["weight_sync/probe_gap"] < 0.1
