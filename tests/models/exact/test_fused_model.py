"""Models by Triton's kernels, through its interpreter: sampled, scored in any company and trained,
the same bits.

The interpreter cannot multiply bf16; that type is for a GPU (`lockstep gpu-check`).
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fused_device import DEVICE, INTERPRETED, MARKS
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from lockstep.core import keyed
from lockstep.core.batch import Batch
from lockstep.core.types import Request, SamplingParams
from lockstep.models.attention import NAME
from lockstep.models.exact import probe
from lockstep.models.exact.model import make_exact
from lockstep.models.families.registry import GPU_EXACT_TYPES
from lockstep.models.heads import LogitsHead
from lockstep.samplers.torch.sampler import TorchSampler

pytestmark = MARKS
SHAPE = {
    "vocab_size": 70, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "initializer_range": 0.2, "bos_token_id": None,
    "eos_token_id": None,
}  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 9},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {"head_dim": 8},
}
SAMPLINGS = {
    "llama": {},
    "mistral": {"temperature": 1.3, "top_k": 9, "top_p": 0.9},
    "qwen2": {"temperature": 0.7},
}
DTYPES = [torch.float32] if INTERPRETED else [torch.float32, torch.bfloat16]


def build(kind: str) -> PreTrainedModel:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = AutoConfig.for_model(kind, **(SHAPE | KINDS[kind]))
        lm: Any = AutoModelForCausalLM.from_config(
            config, attn_implementation=NAME, dtype=torch.float32
        )
    return lm.eval().to(DEVICE)


def test_fused_model_tests_cover_every_gpu_exact_model_type() -> None:
    assert set(KINDS) == set(GPU_EXACT_TYPES)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_fused_token_logprob_has_same_bits_sampled_and_trained(
    kind: str, dtype: torch.dtype
) -> None:
    lm, bf16 = build(kind), dtype == torch.bfloat16
    plain = LogitsHead(lm)

    def score(head: LogitsHead, batch: Batch) -> tuple[Tensor, list[Tensor]]:
        with torch.autocast(DEVICE, torch.bfloat16, enabled=bf16):
            logprob = head(batch.to(DEVICE)).logprob
        assert logprob is not None
        found = logprob.float()[batch.mask.to(DEVICE)]
        return found.detach().cpu(), list(torch.autograd.grad(found.sum(), list(lm.parameters())))

    requests = [
        Request(tuple(range(3, 3 + length)), keyed.hash_key("fused", number))
        for number, length in enumerate((1, 19, 19))
    ]
    sampling = SamplingParams(max_tokens=4, **SAMPLINGS.get(kind, {}))
    probe = TorchSampler(lm, 2, "bf16" if bf16 else "fp32").generate(requests, sampling)
    before = score(plain, probe)
    make_exact(lm)
    exact = LogitsHead(lm)
    batch = TorchSampler(lm, 1, "bf16" if bf16 else "fp32").generate(requests, sampling)
    found, _ = score(exact, batch)
    assert torch.equal(found, batch["sampler_logprob"][batch.mask])
    one = batch.select([1])
    assert torch.equal(score(exact, one)[0], one["sampler_logprob"][one.mask])
    shared = exact.lay_out(batch, share_prefixes=True)
    assert shared.cut.tokens.numel() < batch.tokens.numel()
    assert torch.equal(score(exact, shared)[0], found)
    again = score(exact, probe)
    atol = 0.1 if bf16 else 1e-4
    torch.testing.assert_close(again[0], before[0], atol=atol, rtol=0.0)
    if not bf16:
        for ours, other in zip(again[1], before[1], strict=True):
            torch.testing.assert_close(
                ours, other, atol=2e-4 * max(1.0, float(other.abs().max())), rtol=0.0
            )


def test_gpu_exactness_probe_names_failing_product_and_missing_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probe, "_SIZES", (1, 5, 17))
    monkeypatch.setattr(probe, "_LENGTH", 160)
    probe._known.clear()
    config, right = build("qwen3").config, probe.exact_product
    assert probe.probe_exactness(config, "fp32", DEVICE) is None
    probe._known.clear()
    monkeypatch.setattr(
        probe, "exact_product", lambda x, weight: right(x, weight) * (1.0 + 1e-6 * len(x))
    )
    assert "a product of 24 by " in str(probe.probe_exactness(config, "fp32", DEVICE))
    probe._known.clear()
    assert "no exact GPU kernels" in str(
        probe.explain_no_gpu_kernels(AutoConfig.for_model("gemma2"))
    )
