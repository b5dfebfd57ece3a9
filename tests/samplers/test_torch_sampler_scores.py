"""Scores of the torch sampler take memory that grows neither with the vocabulary nor with the rows
of a batch.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig, AutoModelForCausalLM

from lockstep.core.batch import Batch
from lockstep.models.attention import NAME
from lockstep.models.exact.model import make_exact
from lockstep.samplers.torch import model_sampler
from lockstep.samplers.torch.sampler import TorchSampler

VOCABULARY, LENGTH, ROWS = 5000, 8, 6


class Largest(TorchDispatchMode):
    """Notes the size of the largest result of an operation."""

    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            self.numel = max(self.numel, out.numel())
        return out


@pytest.fixture
def batch() -> Batch:
    tokens = torch.arange(ROWS * LENGTH) * 97 % VOCABULARY
    bare = Batch(tokens, torch.full((ROWS,), LENGTH))
    return bare.with_columns({"mask": bare.position > 0})


def open_sampler(places: int) -> TorchSampler:
    shape = {
        "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 2, "initializer_range": 0.2,
    }  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = AutoConfig.for_model("llama", **shape)
        lm = AutoModelForCausalLM.from_config(
            config, attn_implementation=NAME, dtype=torch.float32
        ).eval()
    make_exact(lm)
    return TorchSampler(lm, places)


def test_sampler_scoring_never_materializes_logits_of_full_batch(batch: Batch) -> None:
    sampler = open_sampler(ROWS)
    with Largest() as seen:
        sampler.logprobs(batch)
    assert seen.numel < ROWS * (LENGTH - 1) * VOCABULARY


@pytest.mark.parametrize(("tokens", "count"), [(1, 6), (20, 3)])
def test_splitting_scoring_into_small_passes_keeps_logprob_bits(
    batch: Batch, tokens: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler, passes = open_sampler(4), list[object]()
    usual = sampler.logprobs(batch)
    monkeypatch.setattr(model_sampler, "PASS_TOKENS", tokens)
    sampler._lm.base_model.register_forward_pre_hook(lambda *_: passes.append(None))
    assert torch.equal(sampler.logprobs(batch), usual)
    assert len(passes) == 2 + count, "two of a trial, and those of the rows"
