"""Backends that a machine cannot have are skipped, and said."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lockstep.cluster.workers import HERE
from lockstep.core.errors import InputError
from lockstep_doctor.backends import build
from lockstep_doctor.table.options import DoctorRecipe

GPU, CPU = torch.device("cuda", 0), torch.device("cpu")


def recipe(*names: str, dtype: str = "fp32") -> DoctorRecipe:
    return DoctorRecipe.model_validate(
        {
            "algorithm": "doctor",
            "model": {"path": "nowhere"},
            "data": {"max_prompt_tokens": 8},
            "backends": names,
            "learner": {"device": "cpu", "dtype": dtype},
        }
    )


def test_megatron_is_skipped_for_unsupported_dtype_or_device() -> None:
    assert build.explain_missing("megatron-pp2", GPU, "fp16") == "Megatron does not compute in fp16"
    assert "only on GPUs" in str(build.explain_missing("megatron", CPU, "bf16"))
    assert build.explain_missing("megatron", GPU, "bf16") is None


def test_skipping_backends_to_fewer_than_two_is_rejected() -> None:
    assert list(build.find_missing(recipe("hf", "megatron", "torch", dtype="bf16"))) == ["megatron"]
    with pytest.raises(InputError, match=r"fewer than two to compare \(megatron: .*; add one"):
        build.find_missing(recipe("hf", "megatron", dtype="bf16"))


@pytest.mark.parametrize(("name", "ranks"), [("vllm", 1), ("vllm-tp2", 2)])
def test_vllm_backend_name_sets_tensor_parallel_ranks(
    monkeypatch: pytest.MonkeyPatch, name: str, ranks: int
) -> None:
    seen = list[Any]()
    monkeypatch.setattr(
        "lockstep_doctor.backends.vllm.VLLMBackend", lambda *given: seen.append(given)
    )
    build.backend_of(recipe("hf", "torch"), name, print, HERE)
    assert seen[0][-1] == ranks
