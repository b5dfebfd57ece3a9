"""Products in fixed chunks: any number of neighboring shards, added by the top of the tree, has the
bits of the whole.
"""

from __future__ import annotations

import pytest
import torch
from tiers import full
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoConfig, PreTrainedConfig

from lockstep.config import Parallel
from lockstep.models.exact.chunks import add_tree, count_chunks, keep_casts, multiply_in_chunks
from lockstep.models.exact.layouts import explain_inexact_layout

SHAPES = [
    # numbers summed, columns, chunks; of SmolLM2, Qwen2.5 0.5B, Llama 8B, and of tests
    full(1536, 576, 3),
    full(4864, 896, 2),
    full(4096, 512, 8),
    (576, 576, 3),
    (896, 896, 2),
    (96, 64, 8),
    (64, 48, 4),
    (80, 48, 2),
]


def describe(kind: str = "llama", **fields: int) -> PreTrainedConfig:
    sizes = {"hidden_size": 384, "num_attention_heads": 24, "head_dim": 64}
    return AutoConfig.for_model(kind, **{**sizes, **fields})


@pytest.mark.parametrize(
    ("heads", "inner", "chunks"),
    [(8, 14336, 8), (2, 4864, 2), (3, 1536, 3), (1, 96, 1), (24, 96, 8), (8, 100, 4), (6, 96, 2), (3, 100, 1)],
)  # fmt: skip
def test_chunks_divide_key_heads_and_intermediate_size(heads: int, inner: int, chunks: int) -> None:
    config = describe(num_key_value_heads=heads, intermediate_size=inner)
    assert count_chunks(config) == chunks
    assert count_chunks(describe("gemma2", num_key_value_heads=8)) == 1
    for tp in (1, 2, 3, 4, 8):
        reason = explain_inexact_layout(config, Parallel(tp=tp, dp=2))
        if chunks % tp == 0:
            assert reason is None
        else:
            assert reason == (
                f"learner.parallel.tp is {tp}, but the model's sums have {chunks} chunks, which it "
                "does not divide"
            )


def test_layout_of_small_heads_is_inexact() -> None:
    config = describe(num_key_value_heads=2, intermediate_size=96, head_dim=8)
    assert explain_inexact_layout(config, Parallel(tp=2)) == (
        "learner.parallel.tp is 2, but the model's heads have 8 dimensions, fewer than 16"
    )


def multiply_each(x: Tensor, weight: Tensor, chunks: int) -> list[Tensor]:
    """The products of separate chunks, as ranks hold them."""
    pairs = zip(x.chunk(chunks, 1), weight.chunk(chunks, 1), strict=True)
    return [F.linear(part.contiguous(), columns.contiguous()) for part, columns in pairs]


def add_over_ranks(products: list[Tensor], ranks: int) -> Tensor:
    """Each rank adds its neighboring products; then the ranks' sums are added."""
    own = len(products) // ranks
    sums = [add_tree(iter(products[r * own : (r + 1) * own]), own) for r in range(ranks)]
    return add_tree(iter(sums), ranks).float()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("size", "columns", "chunks"), SHAPES)
def test_shards_added_by_top_of_tree_have_bits_of_whole_product(
    size: int, columns: int, chunks: int, dtype: torch.dtype
) -> None:
    draw = torch.Generator().manual_seed(size)
    x, weight = (torch.randn(n, size, generator=draw).to(dtype) for n in (264, columns))
    bias = torch.randn(columns, generator=draw).to(dtype)
    whole = multiply_in_chunks(x, weight, bias, chunks)
    for ranks in range(1, chunks + 1):
        if chunks % ranks == 0:
            total = add_over_ranks(multiply_each(x, weight, chunks), ranks)
            assert torch.equal((total + bias).to(dtype), whole)
    # AMX sums large products of few rows in another order, which the probe finds
    for rows in (1, 5, 17) if dtype == torch.float32 or size < 1024 else ():
        assert torch.equal(multiply_in_chunks(x[:rows], weight, bias, chunks), whole[:rows])
    if chunks > 2 and dtype == torch.float32:  # two bf16 numbers often add exactly
        first, *others = multiply_each(x, weight, chunks)
        total = add_over_ranks([*others, first], 1)
        assert not torch.equal((total + bias).to(dtype), whole), "another tree goes unseen"


def test_multiply_in_chunks_and_gradients_match_float64() -> None:
    draw = torch.Generator().manual_seed(0)
    leaves = [torch.randn(*shape, generator=draw) for shape in ((2, 9, 40), (24, 40), (24,))]
    wide = [leaf.double().requires_grad_() for leaf in leaves]
    own = [leaf.requires_grad_() for leaf in leaves]
    found = multiply_in_chunks(*own, chunks=8)
    expected = F.linear(*wide)
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=0.0)
    slope = torch.randn(expected.shape, generator=draw)
    gradients = torch.autograd.grad(found, own, slope)
    for ours, other in zip(
        gradients, torch.autograd.grad(expected, wide, slope.double()), strict=True
    ):
        torch.testing.assert_close(ours.double(), other, atol=2e-5, rtol=0.0)


def test_casts_are_kept_within_their_context_only() -> None:
    x, weight = torch.ones(1, 8, dtype=torch.bfloat16), torch.ones(4, 8)
    with torch.no_grad():
        with keep_casts():
            assert float(multiply_in_chunks(x, weight, None, 2).sum()) == 32.0
            weight.mul_(2)
            assert float(multiply_in_chunks(x, weight, None, 2).sum()) == 32.0
        assert float(multiply_in_chunks(x, weight, None, 2).sum()) == 64.0


def test_product_of_no_rows_has_no_rows() -> None:
    x = torch.zeros(1, 0, 64, requires_grad=True)
    weight = torch.zeros(48, 64, requires_grad=True)
    out = multiply_in_chunks(x, weight, None, 2)
    assert out.shape == (1, 0, 48)
    out.sum().backward()
    assert weight.grad is not None
