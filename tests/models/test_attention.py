from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tiny_models import ARCHITECTURES, ragged
from torch import Tensor
from transformers import AutoConfig
from uncached import generate_uncached

from lockstep.core.batch import Batch
from lockstep.core.errors import InputError
from lockstep.core.types import Request, SamplingParams
from lockstep.models.attention import PackedLayout, SideBySide
from lockstep.models.kernels import FUSED
from lockstep.models.load import load_causal_lm
from lockstep.models.miniature import build_miniature, plain_logits
from lockstep.samplers.torch.sampler import TorchSampler

HEADS, GROUPS, SIZE = 4, 2, 8


def projections(batch: Batch, seed: int) -> list[Tensor]:
    """Queries, keys and values of all tokens, [1, heads, N, size]."""
    draw = torch.Generator().manual_seed(seed)
    shapes = [(1, heads, batch.tokens.numel(), SIZE) for heads in (HEADS, GROUPS, GROUPS)]
    return [torch.randn(shape, generator=draw, requires_grad=True) for shape in shapes]


def alone(query: Tensor, key: Tensor, value: Tensor, window: int | None) -> Tensor:
    """Softmax attention of one sequence, written out. Returns [tokens, heads, size]."""
    key, value = (x.repeat_interleave(HEADS // GROUPS, 0) for x in (key, value))
    scores = query @ key.transpose(1, 2) * 0.3
    distance = torch.arange(query.shape[1])[:, None] - torch.arange(query.shape[1])[None, :]
    hidden = (distance < 0) | (distance >= (window or 10**6))
    return (scores.masked_fill(hidden, float("-inf")).softmax(-1) @ value).transpose(0, 1)


@pytest.mark.parametrize("window", [None, 1, 3, 100])
def test_packed_attention_matches_separate_attention_per_sequence(window: int | None) -> None:
    batch = ragged((5, 1, 9, 3, 8, 4))
    query, key, value = projections(batch, 0)
    out = PackedLayout.from_batch(batch).attend(FUSED, 0, query, key, value, 0.3, window)[0]
    pieces = [x[0].split(batch.lengths.tolist(), dim=1) for x in (query, key, value)]
    expected = torch.cat([alone(q, k, v, window) for q, k, v in zip(*pieces, strict=True)])
    torch.testing.assert_close(out, expected, atol=1e-6, rtol=0.0)
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    gradients = torch.autograd.grad((out * weights).sum(), [query, key, value])
    others = torch.autograd.grad((expected * weights).sum(), [query, key, value])
    for gradient, other in zip(gradients, others, strict=True):
        torch.testing.assert_close(gradient, other, atol=1e-6, rtol=0.0)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_packed_sequences_do_not_attend_to_each_other(
    models: Callable[..., Path], architecture: str
) -> None:
    lm = load_causal_lm(models(architecture))
    batch = ragged((6, 11, 4))
    embedded = lm.get_input_embeddings()(batch.tokens)[None].detach().requires_grad_()

    def logits(vectors: Tensor) -> Tensor:
        layout = PackedLayout.from_batch(batch)
        return lm(
            inputs_embeds=vectors, position_ids=batch.position[None], use_cache=False, layout=layout
        ).logits[0]

    middle = batch.row == 1
    before = logits(embedded)
    (gradient,) = torch.autograd.grad(before[middle].square().sum(), embedded)
    assert (gradient[0, ~middle] == 0).all()
    assert (gradient[0, middle].abs().sum(-1) > 0).all()
    replaced = torch.where(middle[None, :, None], embedded, torch.randn_like(embedded))
    after = logits(replaced)
    assert torch.equal(after[middle], before[middle])
    assert not torch.equal(after[~middle], before[~middle])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_kv_cached_generation_matches_uncached_generation(
    models: Callable[..., Path], architecture: str
) -> None:
    lm, sampling = load_causal_lm(models(architecture)), SamplingParams(max_tokens=8)
    requests = [Request(tuple(range(1, 1 + length)), length) for length in (12, 3, 9, 14)]
    found, whole = (
        TorchSampler(lm, 3).generate(requests, sampling),
        generate_uncached(lm, requests, sampling),
    )
    assert torch.equal(found.tokens, whole.tokens)
    torch.testing.assert_close(
        found["sampler_logprob"], whole["sampler_logprob"], atol=2e-5, rtol=0.0
    )


SMALL = {
    "vocab_size": 16,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "head_dim": 8,
}
CONFIG = {
    **SMALL,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "sliding_window": 3,
    "num_local_experts": 4,
}


@pytest.mark.parametrize(
    ("kind", "more"), [("gemma2", {"attn_logit_softcapping": 0.5}), ("gpt_oss", {})]
)
def test_packed_softcap_and_sinks_match_transformers_and_side_by_side_is_refused(
    kind: str, more: dict[str, float]
) -> None:
    model = build_miniature(AutoConfig.for_model(kind, **CONFIG, **more, pad_token_id=None))
    batch = Batch(torch.arange(11) % 16, torch.tensor([4, 7]))
    inputs = {
        "input_ids": batch.tokens[None],
        "position_ids": batch.position[None],
        "use_cache": False,
    }
    logits = model(**inputs, layout=PackedLayout.from_batch(batch)).logits[0]
    expected = torch.cat([plain_logits(model, tokens) for tokens in batch.sequences()])
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0.0)
    with pytest.raises(
        InputError,
        match=r"needs '(softcap|s_aux)' in its attention, which Lockstep does not support with",
    ):
        model(**inputs, layout=SideBySide())
