"""Models whose tensors vLLM renames, lays together, cuts or reorders: sent, proven to have arrived,
and right.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiers import one_in
from tiny_models import SHAPE
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.family_vllm import measured

pytestmark = [pytest.mark.full, pytest.mark.needs("vllm")]

EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 24, "head_dim": 8}
FAMILIES: dict[str, dict[str, Any]] = {
    "files that have query, key and value in one": {
        "model_type": "phi3",
        "original_max_position_embeddings": 48,
    },
    "experts that a kernel pads and reorders": {
        "model_type": "qwen3_moe",
        "num_experts": 4,
        **EXPERTS,
    },
    "other names within vLLM": {"model_type": "gpt_neox", "num_key_value_heads": 4},
}


@pytest.mark.parametrize("family", one_in(3, FAMILIES))
def test_vllm_computes_with_synced_weights_of_phi3_qwen3_moe_and_gpt_neox(
    vllm: None, tmp_path: Path, family: str
) -> None:
    torch.manual_seed(0)
    fields = {**SHAPE, "pad_token_id": None, **FAMILIES[family]}
    AutoModelForCausalLM.from_config(AutoConfig.for_model(**fields)).save_pretrained(tmp_path)
    outcome = measured(tmp_path)
    assert outcome.gap is not None, outcome.reason
    assert outcome.gap < 1e-4
