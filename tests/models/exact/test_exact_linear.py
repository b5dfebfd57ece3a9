from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from lockstep.models.exact.linear import exact_linear, gelu_tanh, silu

ROWS = st.one_of(
    st.integers(1, 40),
    st.integers(60, 70),
    st.integers(250, 300),
    st.sampled_from((2047, 2048, 2049, 4099)),
)
# With AMX, oneDNN sums a few elements of large products in bf16 in another order; a probe of such a
# shape says so.
BF16 = st.just(False) if torch.cpu._is_amx_tile_supported() else st.booleans()
SHAPES = st.sampled_from(((32, 64), (64, 15), (64, 16), (172, 64), (128, 384), (896, 896)))


@settings(max_examples=60, deadline=None)
@given(
    shape=SHAPES,
    rows=ROWS,
    start=st.integers(0, 50),
    bias=st.booleans(),
    bf16=BF16,
    grad=st.booleans(),
    threads=st.sampled_from((1, 2)),
)
def test_exact_linear_row_has_same_bits_in_any_batch_and_thread_count(
    shape: tuple[int, int], rows: int, start: int, bias: bool, bf16: bool, grad: bool, threads: int
) -> None:
    draw = torch.Generator().manual_seed(rows)
    x, weight = (
        torch.randn(rows + start, shape[0], generator=draw),
        torch.randn(shape[1], shape[0], generator=draw),
    )
    offset = torch.randn(shape[1], generator=draw) if bias else None
    weight.requires_grad_(grad)
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        torch.set_num_threads(1)
        each = torch.cat(
            [
                exact_linear(x[i : i + 1], weight, offset)
                for i in range(start, min(start + 5, rows + start))
            ]
        )
        torch.set_num_threads(threads)
        whole = exact_linear(x[None, start:], weight, offset)[0]
    assert whole.dtype == (torch.bfloat16 if bf16 else torch.float32)
    assert torch.equal(whole[: len(each)], each)


@pytest.mark.parametrize("rows", [3, 8, 2100])
def test_exact_linear_output_and_gradients_match_float64(rows: int) -> None:
    draw = torch.Generator().manual_seed(0)
    leaves = [
        torch.randn(*shape, generator=draw).requires_grad_()
        for shape in ((rows, 24), (40, 24), (40,))
    ]
    weight = torch.randn(rows, 40, generator=draw)
    wide = [x.detach().double().requires_grad_() for x in leaves]
    out, expected = exact_linear(*leaves), F.linear(*wide)
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-5)
    gradients = torch.autograd.grad((out * weight).sum(), leaves)
    for gradient, other in zip(
        gradients, torch.autograd.grad((expected * weight).sum(), wide), strict=True
    ):
        torch.testing.assert_close(gradient.double(), other, atol=2e-4, rtol=1e-5)


ACTIVATIONS = ((silu, F.silu), (gelu_tanh, partial(F.gelu, approximate="tanh")))
Activation = Callable[[Tensor], Tensor]


@pytest.mark.parametrize("activation", [silu, gelu_tanh])
@settings(max_examples=40, deadline=None)
@given(
    size=st.one_of(st.integers(1, 300), st.integers(32700, 32900), st.just(100_003)),
    start=st.integers(0, 100),
    bf16=BF16,
    threads=st.sampled_from((1, 2, 3, 4)),
)
def test_exact_activation_bits_do_not_depend_on_position_or_thread_count(
    activation: Activation, size: int, start: int, bf16: bool, threads: int
) -> None:
    x = 4 * torch.randn(200_000, generator=torch.Generator().manual_seed(0))
    x = x.bfloat16() if bf16 else x
    torch.set_num_threads(1)
    whole = activation(x)
    torch.set_num_threads(threads)
    assert torch.equal(activation(x[start : start + size].clone()), whole[start : start + size])


@pytest.mark.parametrize(("activation", "usual"), ACTIVATIONS)
def test_exact_activations_and_gradients_match_float64(
    activation: Activation, usual: Activation
) -> None:
    x = torch.tensor([-200.0, -90.0, -5.0, -0.5, 0.0, 1e-3, 3.0, 90.0, 200.0]).requires_grad_()
    wide = x.detach().double().requires_grad_()
    torch.testing.assert_close(activation(x).double(), usual(wide), atol=1e-6, rtol=1e-6)
    (gradient,) = torch.autograd.grad(activation(x).sum(), x)
    (expected,) = torch.autograd.grad(usual(wide).sum(), wide)
    torch.testing.assert_close(gradient.double(), expected, atol=1e-6, rtol=1e-6)
