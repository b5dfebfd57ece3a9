"""The turns of a vLLM beside a learner: what it frees and takes again, in which order.

No GPU has shown it yet.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_models import SECTION

from lockstep.cluster.sampler_pool import SamplerPool
from lockstep.cluster.specs import LearnerSpec, SamplerSpec
from lockstep.config import SamplerSection
from lockstep.core.types import Request, SamplingParams
from lockstep.rollouts.sampler_session import SamplerSession
from lockstep.samplers.torch.backend import TorchInference
from lockstep.samplers.vllm.sampler import VLLMSampler
from lockstep.weight_sync.buckets import WeightBucket

HELD = {"fingerprints": {}, "columns": {}, "received": [], "tied": {}}


class Engine:
    """Notes what it is asked for, and has neither weights nor a cache."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def wake_up(self, tags: list[str] | None = None) -> None:
        self.asked.append(("wake", *(tags or ["all"])))

    def sleep(self, level: int) -> None:
        self.asked.append(("sleep", level))

    def reset_prefix_cache(self) -> None:
        self.asked.append("reset")

    def reset_mm_cache(self) -> None:
        pass


class Resting(VLLMSampler):
    """A sampler of such an engine."""

    def __init__(self, engine: Any, sleeps: bool, gets_weights: bool = False) -> None:
        self._engine, self._takes_turns, self._drops_weights, self._without_cache = (
            engine,
            sleeps,
            gets_weights,
            False,
        )
        self.asked = engine.asked

    def _call_workers(self, verb: str, *arguments: str | bytes) -> list[Any]:
        self.asked.append(verb)
        return [json.dumps(HELD)]

    def _sample_probe(self) -> Any:
        assert not self._without_cache, (
            "nothing can be generated without memory for keys and values"
        )
        self.asked.append("probe")
        return type("Output", (), {"num_cached_tokens": 0})()


def sync(sampler: Resting) -> None:
    sampler.receive(WeightBucket(0, 0, ()))
    sampler.attest(1)


def test_vllm_allocates_kv_cache_only_after_weights_are_attested() -> None:
    sampler = Resting(Engine(), sleeps=True)
    sync(sampler)
    sampler.sleep()
    sampler.asked.clear()
    sampler.wake()
    sync(sampler)
    sampler.sleep()
    assert sampler.asked == [
        ("wake", "weights"), "receive_weights", "attest_weights", ("wake", "kv_cache"), "reset", "probe", ("sleep", 2),
    ]  # fmt: skip


def test_vllm_sleep_discards_weights_that_learner_will_resend() -> None:
    sampler = Resting(Engine(), sleeps=True, gets_weights=True)
    sampler.sleep()
    sampler.wake()
    sync(sampler)
    assert sampler.asked[:3] == [("sleep", 2), ("wake", "weights"), "receive_weights"]
    section = SamplerSection(backend="vllm")
    assert section.take_turns(gets_weights=True).gets_weights
    assert not section.take_turns().gets_weights


@pytest.mark.parametrize("forgets", [False, True])
def test_session_resends_weights_that_sampler_dropped_in_sleep(
    models: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, forgets: bool
) -> None:
    monkeypatch.setattr(TorchInference, "forgets_weights", lambda self, section: forgets)
    folder = str(models("llama"))
    learner = LearnerSpec(folder, "logits", SECTION, None, 0).build()
    pool = SamplerPool(SamplerSpec(folder, SamplerSection(max_batch_size=4), SECTION))
    sent: list[str] = []
    session = SamplerSession(
        pool, learner, phase=lambda name: contextlib.nullcontext(sent.append(name))
    )
    try:
        for _ in range(2):
            with session.at(version=0):
                session.generate([Request((3, 4), 1)], SamplingParams(max_tokens=2))
        assert len(sent) == (2 if forgets else 1)
    finally:
        pool.close()
