"""The torch sampler by prefill and by decoding: what `transformers` computes, and a fault of its
cache at its place.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from located import TOKENS, assert_column_of_logits, assert_every_cut, ends, families, functions

from lockstep.core.errors import InputError
from lockstep.samplers.torch.continuous import DecodeAttention
from lockstep_doctor.engines import EngineOptions
from lockstep_doctor.hf import open_hf
from lockstep_doctor.locate import locate
from lockstep_doctor.taps.torch_sampler import open_sampler

Models = Callable[[str], Path]
TIGHT = 2e-6
"""See test_learner_taps.py."""


@pytest.mark.parametrize(
    "family", families("qwen3", "mixtral", full=("llama", "qwen2", "qwen3_moe"))
)
@pytest.mark.parametrize("prompt", [None, 1, 9])
def test_sampler_tap_matches_transformers_at_every_cut(
    located_model: Models, family: str, prompt: int | None
) -> None:
    folder = located_model(family)
    with (
        open_hf(folder, EngineOptions()) as reference,
        open_sampler(folder, EngineOptions(prompt=prompt)) as sampler,
    ):
        right, own = reference.run(TOKENS, {}), sampler.run(TOKENS, {})
        assert_every_cut(own, right)
        if prompt == 1:
            assert_column_of_logits(own)
        assert not locate(reference, sampler, TOKENS, tolerance=TIGHT).all_segments
        assert not locate(sampler, reference, TOKENS, tolerance=TIGHT).all_segments


def test_keys_rounded_in_decoding_are_located_at_attention_after_prompt(
    located_model: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, attend = located_model("qwen3"), DecodeAttention.attend

    def keep_rounded(
        own: DecodeAttention,
        kernel: object,
        layer: int,
        query: object,
        key: torch.Tensor,
        *others: object,
    ):
        return attend(own, kernel, layer, query, key.bfloat16().float(), *others)  # pyright: ignore[reportArgumentType]

    with (
        open_sampler(folder, EngineOptions(prompt=9)) as prefill,
        open_sampler(folder, EngineOptions(prompt=9)) as decoding,
    ):
        prefill._prompt = None
        monkeypatch.setattr(DecodeAttention, "attend", keep_rounded)
        found = locate(prefill, decoding, TOKENS)
    assert ends(found) == {"attn"}
    assert {segment.first for segment in found.all_segments} == {9}
    assert found.removed > 0.99
    assert "keep_rounded" in functions(found)[0]


def test_changed_weight_is_located_at_its_projection(located_model: Models) -> None:
    folder = located_model("qwen3")
    with (
        open_hf(folder, EngineOptions()) as reference,
        open_sampler(folder, EngineOptions(prompt=9)) as sampler,
    ):
        with torch.no_grad():
            sampler.model.get_parameter("model.layers.1.self_attn.k_proj.weight")[3] += 0.3
        found = locate(reference, sampler, TOKENS)
    assert [str(segment.end) for segment in found.all_segments] == ["layers.1.k"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (EngineOptions(dtype=torch.float64), "fp32 or bf16 or fp16"),
        (EngineOptions(parallel={"tp": 2}), "one process"),
        (EngineOptions(neighbors=1), "one sequence"),
        (EngineOptions(prompt=30), "prompt is 30"),
    ],
)
def test_sampler_tap_rejects_unsupported_options(
    located_model: Models, options: EngineOptions, said: str
) -> None:
    with (
        pytest.raises(InputError, match=said),
        open_sampler(located_model("llama"), options) as tap,
    ):
        tap.run(TOKENS, {})
