from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from lockstep.models.exact.attention import BLOCK, KEYS, BlockwiseKernel

GROUPS = st.sampled_from(((1, 1), (4, 4), (4, 2), (6, 2), (9, 1)))
SIZES = st.sampled_from((8, 16, 24, 32, 64, 80, 128))
LENGTHS = st.one_of(
    st.integers(1, 40),
    st.integers(60, 70),
    st.integers(BLOCK - 3, BLOCK + 20),
    st.integers(280, 330),
)


def projections(
    rows: int, heads: tuple[int, int], length: int, size: int, seed: int
) -> list[Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [
        torch.randn(rows, number, length, size, generator=draw)
        for number in (heads[0], heads[1], heads[1])
    ]


def causal(kernel: BlockwiseKernel, qkv: Sequence[Tensor], window: int | None) -> Tensor:
    """[rows, T, H, D]."""
    q, k, v = qkv
    return kernel.attend_causally(q, k, v, 0.3, window).unflatten(0, (len(q), -1))


def decode(
    kernel: BlockwiseKernel, qkv: Sequence[Tensor], at: int, width: int, window: int | None
) -> Tensor:
    """Attention of the query at one place to a cache of some width, as the sampler computes it."""
    q, k, v = qkv
    cells = max(width, at + 1)
    cells += -cells % KEYS
    keys, values = (F.pad(x[:, :, : at + 1], (0, 0, 0, cells - at - 1)) for x in (k, v))
    place = torch.arange(cells)
    seen = (place <= at) & (place > at - (window or cells))
    return kernel.attend_newest(
        q[:, :, at], keys, values, kernel.build_mask(seen.expand(len(q), -1)), 0.3
    )[:, None]


def written_out(kernel: BlockwiseKernel, qkv: Sequence[Tensor], window: int | None) -> Tensor:
    """The same in float64, with all scores at once, [rows, T, H, D]."""
    q, k, v = qkv
    groups, width = q.shape[1] // k.shape[1], q.shape[2]
    k, v = (x.repeat_interleave(groups, 1) for x in (k, v))
    score = q @ k.transpose(2, 3) * 0.3
    if kernel.softcap is not None:
        score = kernel.softcap * torch.tanh(score / kernel.softcap)
    distance = torch.arange(width)[:, None] - torch.arange(width)
    score = score.masked_fill((distance < 0) | (distance >= (window or width)), -torch.inf)
    if kernel.sinks is not None:
        score = torch.cat([score, kernel.sinks.view(1, -1, 1, 1).expand(len(q), -1, width, 1)], -1)
    return (score.softmax(-1)[..., :width] @ v).transpose(1, 2)


@settings(max_examples=40, deadline=None)
@given(
    heads=GROUPS,
    size=SIZES,
    length=LENGTHS,
    rows=st.integers(1, 5),
    window=st.sampled_from((None, 1, 5, 100, 140)),
    kind=st.sampled_from(("plain", "softcap", "sinks")),
    seed=st.integers(0, 99),
    data=st.data(),
)
def test_exact_attention_has_same_bits_in_decode_prefill_and_training(
    heads: tuple[int, int],
    size: int,
    length: int,
    rows: int,
    window: int | None,
    kind: str,
    seed: int,
    data: st.DataObject,
) -> None:
    sinks = torch.linspace(-1, 3, heads[0]) if kind == "sinks" else None
    kernel = BlockwiseKernel(2.0 if kind == "softcap" else None, sinks)
    qkv = projections(rows, heads, length, size, seed)
    torch.set_num_threads(1)
    whole = causal(kernel, qkv, window)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        kept = data.draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=rows, unique=True))
        shorter = data.draw(st.integers(1, length))
        some = causal(kernel, [x[kept, :, :shorter] for x in qkv], window)
        assert torch.equal(some, whole[kept, :shorter])
        begin = data.draw(st.integers(0, length - 1))
        late = causal(kernel, [qkv[0][kept, :, begin:], *(x[kept] for x in qkv[1:])], window)
        assert torch.equal(late, whole[kept, begin:])
        for at in {0, length - 1, data.draw(st.integers(0, length - 1))}:
            width = at + 1 + data.draw(st.integers(0, 300))
            new = decode(kernel, [x[kept] for x in qkv], at, width, window)
            assert torch.equal(new[:, 0], whole[kept, at])


@pytest.mark.parametrize("kind", ["plain", "softcap", "sinks"])
@pytest.mark.parametrize(
    ("length", "window"), [(1, None), (37, None), (37, 5), (300, None), (300, 40)]
)
def test_exact_attention_and_gradients_match_float64(
    kind: str, length: int, window: int | None
) -> None:
    leaves = [
        x.requires_grad_()
        for x in [*projections(3, (4, 2), length, 16, 0), torch.linspace(-1, 3, 4)]
    ]
    leaves = leaves if kind == "sinks" else leaves[:3]
    wide = [x.detach().double().requires_grad_() for x in leaves]
    weight = torch.randn(3, length, 4, 16, generator=torch.Generator().manual_seed(1))
    kernel, exactly = (
        BlockwiseKernel(2.0 if kind == "softcap" else None, x[3] if kind == "sinks" else None)
        for x in (leaves, wide)
    )
    out, expected = causal(kernel, leaves[:3], window), written_out(exactly, wide[:3], window)
    torch.testing.assert_close(out.double(), expected, atol=2e-6, rtol=0.0)
    gradients = torch.autograd.grad((out * weight).sum(), leaves)
    others = torch.autograd.grad((expected * weight).sum(), wide)
    for gradient, other in zip(gradients, others, strict=True):
        torch.testing.assert_close(gradient.double(), other, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("size", [8, 24])
def test_queries_that_begin_anywhere_have_same_bits(size: int) -> None:
    q, k, v = projections(1, (4, 2), 300, size, 0)
    whole = causal(BlockwiseKernel(), [q, k, v], None)
    for begin in range(1, 20):
        late = causal(BlockwiseKernel(), [q[:, :, begin:], k, v], None)
        assert torch.equal(late, whole[:, begin:])
