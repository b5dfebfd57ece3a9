"""The decision whether a model that only samples, or a learner in a loop of one's own, computes
exactly.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig

from lockstep.algorithms import exactness
from lockstep.algorithms.exactness import choose_kernels, choose_learner_kernels
from lockstep.config import Computation, LearnerSection, LoRA, Parallel, SamplerSection

SHAPE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}


@pytest.mark.parametrize(
    ("kind", "backend", "reason"),
    [
        ("llama", "torch", None),
        ("gpt_neox", "torch", "gpt_neox models are not verified as exact"),
        ("llama", "vllm", "sampler.backend=vllm uses its own kernels"),
    ],
)
def test_sampler_is_exact_or_note_gives_reason(
    tmp_path: Path, kind: str, backend: str, reason: str | None
) -> None:
    AutoConfig.for_model(kind, **SHAPE).save_pretrained(tmp_path)
    notes: list[str] = []
    section, computation = SamplerSection(backend=backend), Computation(device="cpu")
    assert choose_kernels(str(tmp_path), section, computation, notes.append).exact is (
        reason is None
    )
    if reason is None:
        assert not notes
    else:
        (note,) = notes
        assert note.startswith(f"not exact: {reason}")
        assert note.endswith("so the last bits of responses may depend on sampler.max_batch_size")


@pytest.mark.parametrize(
    ("kind", "learner", "reason"),
    [
        ("llama", LearnerSection(device="cpu", dtype="bf16"), None),
        ("gpt_neox", LearnerSection(device="cpu"), "gpt_neox models are not verified as exact"),
        (
            "llama",
            LearnerSection(device="cpu", compile=True),
            "learner.compile generates different kernels",
        ),
        (
            "llama",
            LearnerSection(device="cpu", parallel=Parallel(dp=2, dp_replicate=2)),
            None,
        ),
        (
            "llama",
            LearnerSection(device="cpu", parallel=Parallel(dp=2, tp=2)),
            None,
        ),
        (
            "llama",
            LearnerSection(device="cpu", parallel=Parallel(tp=4)),
            "learner.parallel.tp is 4, but the model's sums have 2 chunks",
        ),
        (
            "llama",
            LearnerSection(device="cpu", backend="megatron"),
            "learner.backend=megatron uses different kernels",
        ),
        ("llama", LearnerSection(device="cpu", lora=LoRA()), "learner.lora adapters"),
    ],
)
def test_learner_is_exact_or_note_gives_reason(
    tmp_path: Path, kind: str, learner: LearnerSection, reason: str | None
) -> None:
    AutoConfig.for_model(kind, **SHAPE).save_pretrained(tmp_path)
    notes: list[str] = []
    assert choose_learner_kernels(str(tmp_path), learner, notes.append).exact is (reason is None)
    assert not learner.exact
    assert [note.startswith(f"not exact: {reason}") for note in notes] == (
        [] if reason is None else [True]
    )


def test_tensor_parallel_learner_on_gpu_is_not_exact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    AutoConfig.for_model("llama", **SHAPE).save_pretrained(tmp_path)
    monkeypatch.setattr(exactness, "resolve_device", lambda _: torch.device("cuda"))
    notes: list[str] = []
    section = LearnerSection(parallel=Parallel(tp=2))
    assert not choose_learner_kernels(str(tmp_path), section, notes.append).exact
    assert notes[0].startswith("not exact: learner.parallel.tp is 2, which is exact only on CPUs")
