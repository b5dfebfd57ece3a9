"""A model is proven before it is opened: packed = decoded = plain `transformers`, or it is refused
by name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, PreTrainedConfig

from lockstep.cluster import self_check
from lockstep.cluster.self_check import compute_proof, require_proof
from lockstep.config import Computation, DType
from lockstep.core.types import SamplingParams
from lockstep.models import heads
from lockstep.models.attention import SideBySide
from lockstep.models.folder import ModelError
from lockstep.models.heads import PLAIN
from lockstep.models.miniature import build_miniature

SHAPE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "vocab_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
DELTA = {
    "head_dim": 8,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
LFM2 = {"model_type": "lfm2", "layer_types": ["conv", "full_attention"]}
MAMBA2 = {
    "model_type": "mamba2",
    "state_size": 8,
    "num_heads": 4,
    "head_dim": 16,
    "expand": 2,
    "n_groups": 2,
}
QWEN35 = {
    "model_type": "qwen3_5_text",
    **DELTA,
    "layer_types": ["linear_attention", "full_attention"],
}
DEEPSEEK = {
    "model_type": "deepseek_v3", "n_routed_experts": 4, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2,
    "moe_intermediate_size": 16, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8,
    "v_head_dim": 8, "first_k_dense_replace": 1, "num_key_value_heads": 4,
}  # fmt: skip


def config(**fields: Any) -> PreTrainedConfig:
    return AutoConfig.for_model(**{**SHAPE, **fields})


def proof(
    fields: dict[str, Any], sampling: SamplingParams | None = PLAIN, dtype: DType = "fp32"
) -> self_check.SelfCheckResult:
    sampling = (
        None
        if sampling is None
        else SamplingParams(8, sampling.temperature, sampling.top_k, sampling.top_p)
    )
    return compute_proof(config(**fields), torch.device("cpu"), dtype, sampling)


@pytest.mark.parametrize(
    "fields",
    [
        {"model_type": "llama"},
        {"model_type": "mistral", "sliding_window": 16},
        {"model_type": "gpt2"},
        LFM2,
        MAMBA2,
        QWEN35,
        DEEPSEEK,
    ],
    ids=lambda fields: fields["model_type"],
)
def test_self_check_accepts_supported_architectures(fields: dict[str, Any]) -> None:
    assert proof(fields).largest_gap < 1e-4


@pytest.mark.parametrize("fields", [MAMBA2, LFM2, QWEN35], ids=lambda fields: fields["model_type"])
def test_self_check_detects_state_leaking_between_packed_sequences(
    fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What every such model did while states were packed like attention."""
    monkeypatch.setattr(heads, "carries_state", lambda _: False)
    with pytest.raises(ModelError, match="differs from transformers"):
        proof(fields, sampling=None)


def test_self_check_rejects_wrong_decode_only_for_sampling(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def shifted(self: SideBySide, *arguments: Any) -> Tensor:
        out = original(self, *arguments)
        return out * 0.5 if arguments[2].shape[2] == 1 else out

    original = SideBySide.attend
    monkeypatch.setattr(SideBySide, "attend", shifted)
    with pytest.raises(ModelError, match=r"token by token, .* use sampler\.backend=vllm"):
        proof(QWEN35)
    assert proof(QWEN35, sampling=None).largest_gap < 1e-4


def test_self_check_rejects_recurrent_gemma_by_name() -> None:
    griffin = {"model_type": "recurrent_gemma", "num_hidden_layers": 3, "lru_width": 32}
    with pytest.raises(ModelError, match="recurrent_gemma differs from transformers"):
        proof(griffin)


def test_miniature_model_keeps_each_layer_kind_and_head_size() -> None:
    small = build_miniature(
        config(
            model_type="gemma3_text", hidden_size=2560, intermediate_size=10240, num_hidden_layers=34,
            vocab_size=262_208, num_attention_heads=8, num_key_value_heads=4, head_dim=256, sliding_window=1024,
        )
    )  # fmt: skip
    assert small.config.layer_types == ["sliding_attention", "full_attention"]
    assert (small.config.head_dim, small.config.sliding_window) == (256, 4)
    assert sum(parameter.numel() for parameter in small.parameters()) < 10_000_000
    sparse = build_miniature(config(**DEEPSEEK, num_hidden_layers=20))
    assert sparse.config.num_hidden_layers == 2  # one dense, one with experts


def test_self_check_result_is_cached_per_model_and_sampling(
    models: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path))
    computation, folder = Computation(device="cpu"), models("llama")
    first = require_proof(folder, computation, PLAIN)

    def unwanted(*arguments: object) -> None:
        raise AssertionError("it is in the cache")

    monkeypatch.setattr(self_check, "compute_proof", unwanted)
    assert require_proof(folder, computation, PLAIN) == first
    with pytest.raises(AssertionError):
        require_proof(folder, computation, SamplingParams(1, temperature=0.5))
    with pytest.raises(AssertionError):
        require_proof(models("qwen2"), computation, PLAIN)
