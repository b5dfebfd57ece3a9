"""Backends that a machine cannot have are skipped, and said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from doctor_tables import SMALL
from gpus import show_gpus

from lockstep.cli import main
from lockstep.cluster.workers import HERE
from lockstep.doctor.backends import build
from lockstep.doctor.options import DoctorRecipe
from lockstep.errors import InputError

GPU, CPU = torch.device("cuda", 0), torch.device("cpu")


def recipe(*names: str, device: str = "cpu") -> DoctorRecipe:
    return DoctorRecipe.model_validate(
        {
            "algorithm": "doctor",
            "model": {"path": "nowhere"},
            "data": {"max_prompt_tokens": 8},
            "backends": names,
            "learner": {"device": device},
        }
    )


@pytest.mark.parametrize("name", ["vllm-fp8", "vllm-fp8kv", "vllm-tp2-fp8"])
def test_fp8_needs_vllm_and_a_gpu_that_has_it(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    show_gpus(monkeypatch, 1)
    monkeypatch.setattr(build, "find_spec", lambda _: None)
    assert build.explain_missing(name, GPU) == "vLLM is not installed"
    monkeypatch.setattr(build, "find_spec", lambda _: "there")
    assert build.explain_missing(name, GPU) is None
    assert "on GPUs alone" in str(build.explain_missing(name, CPU))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (8, 0))
    assert "8.9" in str(build.explain_missing(name, GPU))


def test_transformer_engine_is_missed_or_said_to_be_none_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "find_spec", lambda _: None)
    assert build.explain_missing("megatron-te", GPU) == "TransformerEngine is not installed"
    monkeypatch.setattr(build, "find_spec", lambda _: "there")
    assert "Megatron's own layers" in str(build.explain_missing("megatron-te", GPU))


def test_megatron_is_left_out_of_a_table_in_fp16() -> None:
    assert build.explain_missing("megatron-pp2", GPU, "fp16") == "Megatron does not compute in fp16"


def test_what_needs_nothing_is_not_missed() -> None:
    assert not any(build.explain_missing(name, CPU) for name in ("hf", "torch", "vllm", "vllm-tp2", "megatron-pp2"))


def test_two_are_left_to_compare() -> None:
    assert list(build.find_missing(recipe("hf", "vllm-fp8", "torch"))) == ["vllm-fp8"]
    with pytest.raises(InputError, match=r"fewer than two to compare \(vllm-fp8: .*; name another one"):
        build.find_missing(recipe("hf", "vllm-fp8"))


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("vllm", {}),
        ("vllm-tp2", {}),
        ("vllm-fp8", {"quantization": "fp8"}),
        ("vllm-tp2-fp8kv", {"kv_cache_dtype": "fp8"}),
    ],
)
def test_vllm_is_asked_for_what_the_name_says(
    monkeypatch: pytest.MonkeyPatch, name: str, asked: dict[str, str]
) -> None:
    seen = list[Any]()
    monkeypatch.setattr("lockstep.doctor.backends.vllm.VLLMBackend", lambda *given: seen.append(given))
    build.backend_of(recipe("hf", "torch"), name, print, HERE)
    (_, _, _, options, _, _, tp) = seen[0]
    assert options == asked
    assert tp == (2 if "tp2" in name else 1)


def test_a_table_says_what_it_skipped(
    models: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [*SMALL, "backends=[hf,torch,megatron-te]"]
    assert main(["doctor", "table", str(models("llama")), "--out", str(tmp_path / "out"), *asked]) == 0
    assert "megatron-te is skipped: " in capsys.readouterr().out
