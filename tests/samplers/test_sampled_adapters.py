"""A model with adapters samples tokens with the bits that a pass over whole sequences and a learner
give them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from uncached import generate_uncached

from lockstep.config import DType, LoRA
from lockstep.core import keyed
from lockstep.core.batch import Batch
from lockstep.core.types import Request, SamplingParams
from lockstep.models.attention import NAME
from lockstep.models.exact.model import make_exact
from lockstep.models.heads import LogitsHead
from lockstep.models.lora import add_adapters, is_adapter
from lockstep.models.precision import open_autocast
from lockstep.samplers.torch.sampler import TorchSampler

SHAPE = {
    "vocab_size": 32, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256, "initializer_range": 0.2,
}  # fmt: skip
MAPS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
PLAIN = SamplingParams(max_tokens=30, stop_token_ids=(3, 7, 11))


def adapted(kind: str, section: LoRA) -> PreTrainedModel:
    """A model as `load_on_device` opens it, with adapters that are not zero."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = AutoConfig.for_model(kind, **SHAPE)
        lm = AutoModelForCausalLM.from_config(
            config, attn_implementation=NAME, dtype=torch.float32
        ).eval()
    for name, parameter in lm.named_parameters():
        if name.endswith("bias"):
            parameter.data.uniform_(-1.0, 1.0, generator=torch.Generator().manual_seed(len(name)))
    add_adapters(lm, section)
    with torch.no_grad():
        for name, tensor in draw_adapters(lm, 0).items():
            lm.get_parameter(name).copy_(tensor)
    make_exact(lm)
    return lm


def draw_adapters(lm: PreTrainedModel, seed: int) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    held = ((name, parameter) for name, parameter in lm.named_parameters() if is_adapter(name))
    return {name: 0.3 * torch.randn(parameter.shape, generator=draw) for name, parameter in held}


def requests(count: int = 12, seed: int = 0) -> list[Request]:
    draw = random.Random(seed)
    prompts = [
        tuple(draw.randrange(4, 30) for _ in range(draw.randrange(1, 40))) for _ in range(count)
    ]
    return [Request(prompt, keyed.hash_key(seed, i)) for i, prompt in enumerate(prompts)]


def assert_exact(sampler: TorchSampler, wanted: Sequence[Request], dtype: DType) -> Batch:
    """Compares what a sampler writes with passes over whole sequences, and with a learner's scores;
    to the bit.
    """
    batch = sampler.generate(wanted, PLAIN)
    whole = generate_uncached(sampler._lm, wanted, PLAIN, dtype)
    assert torch.equal(batch.tokens, whole.tokens)
    assert torch.equal(batch["sampler_logprob"], whole["sampler_logprob"])
    with open_autocast(torch.device("cpu"), dtype):
        scored = LogitsHead(sampler._lm)(batch).logprob
    assert scored is not None
    assert torch.equal(scored.detach()[batch.mask], batch["sampler_logprob"][batch.mask])
    return batch


@settings(max_examples=10)
@given(
    kind=st.sampled_from(["llama", "qwen2", "qwen3"]),
    dtype=st.sampled_from(["fp32", "bf16", "fp16"]),
    rows=st.sampled_from([1, 3, 8, 64]),
    rank=st.sampled_from([1, 3, 8, 16]),
    alpha=st.sampled_from([1, 7, 32]),
    maps=st.sets(st.sampled_from(MAPS), min_size=1).map(sorted).map(tuple),
    seed=st.integers(0, 99),
)
def test_sampler_with_adapters_matches_uncached_generation_and_learner_bit_for_bit(
    kind: str, dtype: DType, rows: int, rank: int, alpha: int, maps: tuple[str, ...], seed: int
) -> None:
    # a larger scale can overflow fp16, which is refused
    assume(dtype != "fp16" or alpha <= 4 * rank)
    lm = adapted(kind, LoRA(rank=rank, alpha=alpha, target_modules=maps))
    assert_exact(TorchSampler(lm, rows, dtype), requests(12, seed), dtype)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", ["llama", pytest.param("qwen2", marks=pytest.mark.full), "qwen3"])
def test_sampler_uses_new_adapters_after_weight_sync_or_shared_update(
    kind: str, dtype: DType
) -> None:
    """Both ways: sent to the sampler, and written by a learner that shares them."""
    lm = adapted(kind, LoRA(rank=8, alpha=12))
    sampler = TorchSampler(lm, 5, dtype)
    sampler.wake()
    before = assert_exact(sampler, requests(), dtype)
    sampler.load_weights(draw_adapters(lm, 1).items(), 1)
    sent = assert_exact(sampler, requests(), dtype)
    with torch.no_grad():
        for name, tensor in draw_adapters(lm, 2).items():
            lm.get_parameter(name).copy_(tensor)
    sampler.attest(2)
    shared = assert_exact(sampler, requests(), dtype)
    texts = [batch.tokens.tolist() for batch in (before, sent, shared)]
    assert texts[0] != texts[1] != texts[2] != texts[0]
