"""Log-probabilities of a token, sampled with a cache, scored in any company and trained: the same
bits.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from exact_kinds import KINDS, build
from tiers import full
from torch import Tensor
from torch.nn import functional as F

from lockstep.config import DType
from lockstep.core import keyed
from lockstep.core.batch import Batch
from lockstep.core.types import Request, SamplingParams
from lockstep.models.exact import probe
from lockstep.models.exact.model import is_exact, make_exact
from lockstep.models.heads import LogitsHead
from lockstep.models.precision import open_autocast
from lockstep.samplers.torch.sampler import TorchSampler

OFTEN = ("llama", "mistral", "gemma2", "gpt-oss")
SAMPLINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "temperature": {"temperature": 0.7},
    "top-k": {"top_k": 5},
    "top-p": {"temperature": 1.3, "top_k": 40, "top_p": 0.9},
}
THREADS = ((1, 1), (2, 1), (1, 2), (4, 4))
"""Of the sampler and of the learner."""
PROMPTS = (1, 2, 17, 64, 65, 9)
MOST = 10


def requests(vocabulary: int) -> list[Request]:
    draws = [torch.Generator().manual_seed(length) for length in PROMPTS]
    tokens = [
        torch.randint(vocabulary, (n,), generator=draw)
        for n, draw in zip(PROMPTS, draws, strict=True)
    ]
    return [
        Request(tuple(row.tolist()), keyed.hash_key("exact", number))
        for number, row in enumerate(tokens)
    ]


def scored(head: LogitsHead, batch: Batch, dtype: DType, gradient: bool) -> Tensor:
    with open_autocast(torch.device("cpu"), dtype), torch.set_grad_enabled(gradient):
        logprob = head(batch).logprob
    assert logprob is not None
    return logprob.detach()[batch.mask]


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        *(case if case[0] in OFTEN else full(*case) for case in product(KINDS, ("fp32", "bf16"))),
        ("llama", "fp16"),
        ("mixtral", "fp16"),
    ],
)
def test_token_logprob_has_same_bits_sampled_scored_and_trained(kind: str, dtype: DType) -> None:
    lm = build(kind)
    head = LogitsHead(lm)
    make_exact(lm)
    for shape, (sampler, learner) in zip(SAMPLINGS.values(), THREADS, strict=True):
        torch.set_num_threads(sampler)
        sampling = SamplingParams(max_tokens=MOST, stop_token_ids=(3,), **shape)
        batch = TorchSampler(lm, 4, dtype).generate(requests(lm.config.vocab_size), sampling)
        torch.set_num_threads(learner)
        some = batch.select(torch.tensor([4, 1, 2]))
        for part, gradient in ((batch, True), (batch, False), (some, True)):
            assert torch.equal(
                scored(head, part, dtype, gradient), part["sampler_logprob"][part.mask]
            )


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_exact_sampler_output_does_not_depend_on_batch_size(dtype: DType) -> None:
    lm = build("llama")
    make_exact(lm)
    sampling = SamplingParams(max_tokens=MOST, temperature=1.3, top_p=0.9)
    one, many = (TorchSampler(lm, size, dtype).generate(requests(64), sampling) for size in (1, 9))
    assert torch.equal(one.tokens, many.tokens)
    assert torch.equal(one["sampler_logprob"], many["sampler_logprob"])


@pytest.mark.parametrize("kind", KINDS)
def test_make_exact_keeps_logprobs_and_gradients_within_tolerance(kind: str) -> None:
    lm = build(kind)
    head = LogitsHead(lm)
    batch = TorchSampler(lm, 4).generate(
        requests(lm.config.vocab_size), SamplingParams(max_tokens=MOST)
    )

    def gradients() -> list[Tensor]:
        logprob = head(batch).logprob
        assert logprob is not None
        return [logprob, *torch.autograd.grad(logprob.sum(), list(lm.parameters()))]

    before = gradients()
    make_exact(lm)
    assert is_exact(lm)
    for new, old in zip(gradients(), before, strict=True):
        torch.testing.assert_close(
            new, old, atol=2e-4 * max(1.0, float(old.detach().abs().max())), rtol=0.0
        )


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_exactness_probe_accepts_this_machine_and_detects_batch_dependent_product(
    monkeypatch: pytest.MonkeyPatch, dtype: DType
) -> None:
    configs = [
        build(kind).config for kind in ("llama large", "qwen3", "gemma2", "gpt-oss", "mixtral")
    ]
    assert [probe.probe_exactness(config, dtype) for config in configs] == [None] * 5
    probe._known.clear()
    monkeypatch.setattr(
        probe, "exact_product", lambda x, weight: F.linear(x, weight) + (len(x) == 5) * 1e-2
    )
    found = probe.probe_exactness(configs[0], dtype)
    probe._known.clear()
    assert found is not None
    assert "depends on the batch on this machine" in found
