"""Triton's kernels over hidden states against float64, and a row's bits in any company."""

from __future__ import annotations

import inspect
from typing import Any

import dense
import pytest
import torch
from fused_device import DEVICE, HALF, INTERPRETED, MARKS
from hypothesis import given, settings
from hypothesis import strategies as st
from sharded import GRADIENT, close, random, random_tokens

from lockstep_logprobs import Scoring, hidden, hidden_logprobs
from lockstep_logprobs.fused import hidden as fused

pytestmark = MARKS

TEMPERATURE = 0.7


@settings(max_examples=12)
@given(
    rows=st.sampled_from([1, 3, 65]),
    depth=st.sampled_from([8, 65]),
    columns=st.sampled_from([1, 33, 130, 300]),
    tokens=st.integers(0, 3),
    dtype=st.sampled_from([torch.float32, HALF]),
    seed=st.integers(0, 2**16),
)
def test_fused_hidden_logprobs_and_gradients_match_float64(
    rows: int, depth: int, columns: int, tokens: int, dtype: torch.dtype, seed: int
) -> None:
    states = random(rows, depth, seed=seed, scale=1.0).to(DEVICE, dtype).requires_grad_()
    head = random(columns, depth, seed=seed + 1, scale=0.3).to(DEVICE, dtype).requires_grad_()
    token = (random_tokens(rows, tokens, vocabulary=columns + 2, seed=seed) - 1).to(DEVICE)
    found = loss(
        *hidden_logprobs(states, head, token, Scoring(temperature=TEMPERATURE, entropy=True))
    )
    found.backward()
    exact_states, exact_head = (x.detach().double().cpu().requires_grad_() for x in (states, head))
    z = exact_states @ exact_head.t() / TEMPERATURE
    expected = loss(dense.picked_logprobs(z, token.cpu()), -dense.sum_p_log_p(z))
    expected.backward()
    close(found.detach().cpu(), expected.detach(), atol=2e-6 * rows * (tokens + 1), rtol=2e-6)
    for leaf, exact in ((states, exact_states), (head, exact_head)):
        assert leaf.grad is not None
        assert exact.grad is not None
        size = exact.grad.abs().max().item()
        # of the logits' gradient, and of the result
        rounding = 2 * torch.finfo(dtype).eps if dtype == HALF else 1e-5
        close(leaf.grad.cpu(), exact.grad, atol=rounding * size + GRADIENT["atol"], rtol=rounding)


@pytest.mark.skipif(not INTERPRETED, reason="a GPU multiplies bf16")
def test_triton_interpreter_refuses_bf16_products() -> None:
    states, head = torch.ones(1, 8, dtype=torch.bfloat16), torch.ones(3, 8, dtype=torch.bfloat16)
    with pytest.raises(NotImplementedError, match="does not support bf16 products"):
        hidden_logprobs(states, head, torch.zeros(1, 1, dtype=torch.int64))


def loss(logprob: torch.Tensor, entropy: torch.Tensor | None) -> torch.Tensor:
    assert entropy is not None
    return (
        random(*logprob.shape, seed=1, scale=1.0).to(logprob) * logprob
    ).sum() + 0.3 * entropy.sum()


def test_fused_hidden_logprobs_merge_vocabulary_pieces_correctly() -> None:
    """A head of more than one piece, the last of which is a part of a tile."""
    states, head = (
        random(2, 16, scale=1.0).to(DEVICE),
        random(fused._PIECE + 5, 16, scale=1.0).to(DEVICE),
    )
    token = torch.tensor([[0, fused._PIECE + 4], [fused._PIECE - 1, fused._PIECE]], device=DEVICE)
    logprob, entropy = hidden_logprobs(
        states, head, token, Scoring(temperature=TEMPERATURE, entropy=True)
    )
    assert entropy is not None
    z = states.double() @ head.double().t() / TEMPERATURE
    close(logprob, dense.picked_logprobs(z, token), atol=5e-6, rtol=2e-6)
    close(entropy, -dense.sum_p_log_p(z), atol=5e-6, rtol=2e-6)


@pytest.mark.parametrize("dtype", [torch.float32, HALF])
def test_fused_hidden_logprob_bits_do_not_depend_on_other_rows(dtype: torch.dtype) -> None:
    states, head = (
        random(70, 40, scale=1.0).to(DEVICE, dtype),
        random(300, 40, scale=1.0).to(DEVICE, dtype),
    )
    token = random_tokens(70, 1, vocabulary=300).to(DEVICE)
    together = hidden.score_hidden(states, head, token, Scoring(entropy=True))
    assert together.entropy is not None
    for rows in (slice(0, 1), slice(69, 70), slice(3, 68)):
        part = hidden.score_hidden(states[rows], head, token[rows], Scoring(entropy=True))
        assert torch.equal(part.logprob, together.logprob[rows])
        assert part.entropy is not None
        assert torch.equal(part.entropy, together.entropy[rows])


def test_fused_hidden_kernels_have_signatures_of_eager_functions() -> None:
    pairs: tuple[tuple[Any, Any], ...] = (
        (hidden._hidden_row_sums, fused.hidden_row_sums),
        (hidden._gradient_tiles, fused.gradient_tiles),
    )
    for eager, kernel in pairs:
        assert inspect.signature(eager) == inspect.signature(kernel)
