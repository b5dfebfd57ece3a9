"""Experts in the type of autocast against those of `transformers` in that type."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import AutoConfig

from lockstep.models import grouped_experts
from lockstep.models.exact.experts import EXPERTS
from lockstep.models.miniature import build_miniature

SIZES = {
    "vocab_size": 16,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "head_dim": 8,
}
MORE = {
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
    "pad_token_id": None,
}


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        ("mixtral", "num_local_experts"),
        ("qwen3_moe", "num_experts"),
        ("gpt_oss", "num_local_experts"),
    ],
)
def test_grouped_experts_compute_in_bf16_with_fp32_gradients(kind: str, count: str) -> None:
    lm = build_miniature(AutoConfig.for_model(kind, **SIZES, **MORE, **{count: 4}))
    layer = next(module for module in lm.modules() if type(module).__name__ in EXPERTS)
    assert lm.config._experts_implementation == grouped_experts.OF_TRANSFORMERS, (
        "or it would never be chosen"
    )
    torch.manual_seed(0)
    hidden, share = torch.randn(9, 32), torch.rand(9, 2)
    chosen = torch.arange(18).remainder(4).view(9, 2)
    plain = copy.deepcopy(layer).bfloat16()
    expected = plain(hidden.bfloat16(), chosen, share)
    expected.sum().backward()
    lm.set_experts_implementation(grouped_experts.NAME)
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(hidden, chosen, share)
    out.sum().backward()
    assert torch.equal(out, expected.float())
    for ours, other in zip(layer.parameters(), plain.parameters(), strict=True):
        assert ours.grad is not None
        assert other.grad is not None
        assert ours.grad.dtype == torch.float32
        assert torch.equal(ours.grad, other.grad.float())
