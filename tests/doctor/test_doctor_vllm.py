"""vLLM in the doctor, with a real model: its numbers, its conditions, what it shows, and its
refits. Two engines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
from forgetful import ForgetfulSpec
from torch import Tensor

from lockstep.cluster.sampler_pool import SamplerLost
from lockstep.cluster.specs import LearnerSpec
from lockstep.config import VLLM, Computation, LearnerSection, Optimizer, SamplerSection
from lockstep.core import keyed
from lockstep.core.batch import Batch
from lockstep.core.types import Request, SamplingParams
from lockstep.report.progress import show_progress
from lockstep_doctor.backends.hf import HFBackend
from lockstep_doctor.backends.vllm import VLLMBackend
from lockstep_doctor.commands.refit_check import STAGES, check_refits, probe_of
from lockstep_doctor.table.base import BackendConditions

pytestmark = [pytest.mark.full, pytest.mark.needs("vllm")]

SECTION = SamplerSection(max_batch_size=8, vllm=VLLM(), backend="vllm")
LONG = 70
"""Tokens of a prompt that fill two blocks of the prefix cache."""


class ForgetfulBackend(VLLMBackend):
    spec = ForgetfulSpec


@pytest.fixture(scope="module")
def folder(assets: Path) -> str:
    return str(assets / "models" / "stories260K" / "hf")


@pytest.fixture(scope="module")
def hf(folder: str) -> HFBackend:
    return HFBackend(folder)


@pytest.fixture(scope="module")
def backend(vllm: None, folder: str) -> Iterator[VLLMBackend]:
    section = SECTION.model_copy(update={"kv_cache_gib": 0.1})
    opened = ForgetfulBackend(folder, section, Computation(device="cpu"))
    yield opened
    opened.close()


@pytest.fixture
def forgetting(backend: VLLMBackend) -> Iterator[Callable[[str], object]]:
    yield lambda what: backend.engine.remotes[0].call("forget", what)
    backend.engine.remotes[0].call("forget", "")


def requests(count: int = 8, length: int = 12) -> list[Request]:
    draws = keyed.draw_uniforms(torch.arange(count), torch.arange(length))
    return [
        Request(tuple((row * 500).long().tolist()), keyed.hash_key("doctor", i))
        for i, row in enumerate(draws)
    ]


def unshaped(batch: Batch) -> Batch:
    return replace(batch, sampling=None)


def gap(batch: Batch, one: Tensor, other: Tensor) -> float:
    return float((one - other)[batch.mask].abs().mean())


def test_vllm_scores_match_transformers_and_its_own_decoding(
    backend: VLLMBackend, hf: HFBackend
) -> None:
    batch = backend.generate(requests(), SamplingParams(max_tokens=60))
    assert batch.mask.sum() == 8 * 60
    scores = backend.score(unshaped(batch))
    assert 0 < gap(batch, scores, hf.score(batch)) < 1e-4
    assert gap(batch, scores, batch["sampler_logprob"]) < 1e-4


def test_vllm_decoding_logprobs_include_temperature_and_top_k(
    backend: VLLMBackend, hf: HFBackend
) -> None:
    batch = backend.generate(requests(), SamplingParams(max_tokens=30, temperature=0.7, top_k=20))
    assert gap(batch, batch["sampler_logprob"], hf.score(batch)) < 1e-4
    with pytest.raises(ValueError, match="only at temperature 1 over all tokens"):
        backend.score(batch)


def test_fresh_condition_gives_no_prefix_cache_hits(backend: VLLMBackend) -> None:
    asked = (requests(4, LONG), SamplingParams(max_tokens=2))
    backend.generate(*asked)
    assert backend.generate(*asked)["prefix_hits"].tolist() == [64] * 4
    assert (
        backend.generate(*asked, BackendConditions(fresh=True))["prefix_hits"].tolist() == [0] * 4
    )


NORM = "model.layers.2.input_layernorm.weight"


@pytest.mark.parametrize(
    ("forgotten", "what", "why", "stages"),
    [
        ("nothing", "", "", ()),
        ("prefix cache", "prefix cache", "was not dropped", ("noise", "refit", "again")),
        (NORM, NORM, "still has the weights of", ("noise", "again")),
        ("tied head", "lm_head.weight", "still has the weights of", ("noise", "again")),
    ],
)
def test_refit_check_finds_stale_tensors_and_kept_prefix_cache_in_vllm(
    backend: VLLMBackend,
    folder: str,
    forgetting: Callable[[str], object],
    forgotten: str,
    what: str,
    why: str,
    stages: tuple[str, ...],
) -> None:
    learner = LearnerSpec(
        folder, "logits", LearnerSection(device="cpu"), Optimizer(lr=1e-3), 0
    ).build()
    backend.engine.load_weights(list(learner.weights()), 0)  # as if it had just started
    forgetting(forgotten)
    with show_progress("refit") as shown:
        seen = list(
            check_refits(
                learner, backend.engine, probe_of(folder, LearnerSection(device="cpu")), shown
            )
        )
    assert {stage.name: [finding.what for finding in stage.findings] for stage in seen} == {
        name: [what] if name in stages else [] for name in STAGES
    }
    assert all(finding.why.startswith(why) for stage in seen for finding in stage.findings)
    assert (seen[1].tensors, seen[1].received_only) == (50, 2)


def test_doctor_vllm_backend_rejects_multiple_replicas(folder: str) -> None:
    with pytest.raises(ValueError, match=r"leave sampler\.replicas at 1"):
        VLLMBackend(folder, SECTION.model_copy(update={"replicas": 2}), Computation(device="cpu"))


@pytest.mark.proof
def test_killed_vllm_worker_raises_sampler_lost_and_close_ends_all_workers(
    vllm: None, folder: str
) -> None:
    section = SECTION.model_copy(update={"kv_cache_gib": 0.1})
    opened = VLLMBackend(folder, section, Computation(device="cpu"), tp=2)
    greedy = SamplingParams(max_tokens=8, temperature=0.0)
    opened.generate(requests(), greedy)
    first = workers_of_vllm()
    assert len(first) == 2
    first[1].kill()
    with pytest.raises(SamplerLost):
        opened.engine.generate(requests(), greedy)
    opened.close()
    _, alive = psutil.wait_procs(first, timeout=30)
    assert not alive
    opened.close()


def workers_of_vllm() -> list[psutil.Process]:
    below = psutil.Process().children(recursive=True)
    return [
        process for process in below if any("VLLM::Worker" in word for word in process.cmdline())
    ]
