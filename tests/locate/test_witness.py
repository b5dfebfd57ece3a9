"""One network in several types: each computes, to the bit, what the folder opened in that type
does.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from located import TOKENS, families
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.families import FAMILIES
from lockstep_doctor.engines import EngineOptions
from lockstep_doctor.hf import open_hf, open_witnesses

TYPES = torch.float64, torch.bfloat16
STATES = (
    "mamba",
    "falcon_mamba",
    "qwen3_next",
    "qwen3_5_text",
    "bamba",
    "granitemoehybrid",
    "jamba",
)


@pytest.mark.parametrize(
    "family", families("llama", "qwen2", "mixtral", full=("qwen3_moe", "gpt_neox"))
)
def test_cast_witness_matches_model_opened_in_each_dtype(
    located_model: Callable[[str], Path], family: str
) -> None:
    require_equal(located_model(family))


@pytest.mark.parametrize("family", families("mamba2", "lfm2", full=STATES))
def test_cast_witness_matches_model_with_stateful_layers(tmp_path: Path, family: str) -> None:
    """Their weights are read outside of their linear maps, too."""
    AutoModelForCausalLM.from_config(
        AutoConfig.for_model(family, **FAMILIES[family])
    ).save_pretrained(tmp_path)
    require_equal(tmp_path)


def require_equal(folder: Path) -> None:
    for dtype, tap in zip(TYPES, open_witnesses(folder, "cpu", *TYPES), strict=True):
        with open_hf(folder, EngineOptions(dtype=dtype)) as alone:
            expected, found = alone.run(TOKENS, {}), tap.run(TOKENS, {})
        assert expected.seen.keys() == found.seen.keys()
        assert all(torch.equal(value, found.seen[cut]) for cut, value in expected.seen.items())
        assert {weight.dtype for weight in tap.model.parameters()} == {torch.float32}, (
            "of their file again"
        )


def test_computed_constants_are_not_rounded_to_weight_dtype(
    located_model: Callable[[str], Path], tmp_path: Path
) -> None:
    """Gemma's scale of embeddings, √32: in bf16 it is off by 6e-3 of itself."""
    AutoModelForCausalLM.from_pretrained(
        located_model("gemma3_text"), dtype=torch.bfloat16
    ).save_pretrained(tmp_path)
    exact, rounded = open_witnesses(tmp_path, "cpu", *TYPES)
    assert {weight.dtype for weight in exact.model.parameters()} == {torch.bfloat16}
    for dtype, tap, tolerance in ((torch.float64, exact, 1e-6), (torch.bfloat16, rounded, 0.0)):
        with open_hf(tmp_path, EngineOptions(dtype=dtype)) as alone:
            expected, found = alone.run(TOKENS, {}), tap.run(TOKENS, {})
        for cut, value in expected.seen.items():
            torch.testing.assert_close(found.seen[cut], value, rtol=tolerance, atol=tolerance)


def test_failed_witness_pass_restores_weight_dtype(located_model: Callable[[str], Path]) -> None:
    (tap,) = open_witnesses(located_model("llama"), "cpu", torch.float64)
    with pytest.raises(IndexError):
        tap.run(torch.tensor([10**6]), {})
    assert {weight.dtype for weight in tap.model.parameters()} == {torch.float32}


def test_float64_witness_matches_xglm_with_minimum_value_mask(tmp_path: Path) -> None:
    """As `xglm` makes it: by its value alone, which is of no type."""
    shape = {
        "d_model": 32,
        "ffn_dim": 48,
        "num_layers": 1,
        "attention_heads": 2,
        "max_position_embeddings": 64,
    }
    AutoModelForCausalLM.from_config(
        AutoConfig.for_model("xglm", vocab_size=64, **shape)
    ).save_pretrained(tmp_path)
    (witness,) = open_witnesses(tmp_path, "cpu", torch.float64)
    with open_hf(tmp_path, EngineOptions(dtype=torch.float64)) as alone:
        assert torch.equal(witness.run(TOKENS, {}).logits, alone.run(TOKENS, {}).logits)
    assert torch.get_default_dtype() == torch.float32
