"""Which models are scored from their hidden states, and that both ways score alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import ARCHITECTURES, SHAPE, plain_logprobs, plain_model, ragged
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from lockstep.core.types import SamplingParams
from lockstep.models import attention
from lockstep.models.exact.model import make_exact
from lockstep.models.heads import LogitsHead, logits_are_products
from lockstep.models.load import load_causal_lm

OTHERS: dict[str, dict[str, Any]] = {
    "a cap": {"model_type": "gemma3_text", "head_dim": 8, "final_logit_softcapping": 30.0},
    "a factor": {"model_type": "granite", "logits_scaling": 2.0},
    "a bias": {"model_type": "phi"},
}


def small(fields: dict[str, Any]) -> Any:
    config = AutoConfig.for_model(**{**SHAPE, **fields, "eos_token_id": 1})
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention.NAME)


@pytest.mark.parametrize("fields", ARCHITECTURES.values(), ids=ARCHITECTURES)
def test_plain_output_heads_are_detected_as_matrix_products(fields: dict[str, Any]) -> None:
    assert logits_are_products(small(fields))


@pytest.mark.parametrize("fields", OTHERS.values(), ids=OTHERS)
def test_softcapped_scaled_or_biased_heads_are_not_detected_as_products(
    fields: dict[str, Any],
) -> None:
    assert not logits_are_products(small(fields))


@pytest.mark.parametrize("bf16", [False, True])
def test_exact_head_logprobs_from_hidden_states_equal_full_logits_bit_for_bit(bf16: bool) -> None:
    lm, batch = small(ARCHITECTURES["llama"]), ragged((7, 12, 3))
    make_exact(lm)
    assert logits_are_products(lm)
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        fused, whole = (
            LogitsHead(lm, products=products)(batch).logprob for products in (True, False)
        )
    assert torch.equal(fused, whole)


@pytest.mark.parametrize(
    "sampling", [SamplingParams(1), SamplingParams(1, temperature=0.6)], ids=["plain", "0.6"]
)
def test_fused_and_full_logits_heads_give_same_logprobs_and_entropy(
    models: Callable[..., Path], sampling: SamplingParams
) -> None:
    """A head with a bias of zeros is not fused."""
    folder, batch = models("qwen3"), ragged((7, 12, 3), sampling=sampling)
    lm = load_causal_lm(folder)
    fused = LogitsHead(lm)(batch)
    lm.lm_head.bias = nn.Parameter(torch.zeros(lm.config.vocab_size))
    whole = LogitsHead(lm)(batch)
    assert fused.logprob is not None
    assert fused.entropy is not None
    torch.testing.assert_close(fused.logprob, whole.logprob, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(fused.entropy, whole.entropy, atol=1e-5, rtol=1e-5)
    if sampling.temperature == 1.0:
        expected = plain_logprobs(plain_model(folder), batch).float()
        torch.testing.assert_close(fused.logprob, expected, atol=1e-5, rtol=1e-5)
