"""Triton's search for the threshold of top-k and top-p, against sorted probabilities in float64."""

from __future__ import annotations

import inspect
import math
from typing import Any

import dense
import pytest
import torch
from fused_device import DEVICE, MARKS
from hypothesis import given, settings
from hypothesis import strategies as st
from sharded import random

from lockstep_logprobs import support, support_floor
from lockstep_logprobs.fused import support as fused

pytestmark = MARKS


@settings(max_examples=40)
@given(
    columns=st.sampled_from([1, 2, 33, 129, 2049, 5003]),
    top_k=st.none() | st.sampled_from([1, 2, 50, 3000]),
    top_p=st.sampled_from([0.0, 0.1, 0.6, 0.97, 1.0]),
    temperature=st.sampled_from([0.5, 1.0, 2.0]),
    spread=st.sampled_from([1.0, 4.0]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 2**16),
)
def test_fused_top_k_and_top_p_keep_same_tokens_as_float64_sort(
    columns: int,
    top_k: int | None,
    top_p: float,
    temperature: float,
    spread: float,
    dtype: torch.dtype,
    seed: int,
) -> None:
    """But for a token with which p is reached to seven digits, which either may take for the last
    one.
    """
    logits = random(2, columns, seed=seed, scale=spread).to(dtype)
    logits[random(2, columns, seed=seed + 1) > 1.0] = -torch.inf
    logits[:, 0] = 1.0
    floor = support_floor(
        logits.to(DEVICE), top_k=top_k, top_p=top_p, temperature=temperature
    ).cpu()
    kept = logits.float() >= floor[:, None]
    for row, own, least in zip(logits.double() / temperature, kept, floor, strict=True):
        inside = [
            dense.filtered(row, top_k, min(max(p, 0.0), 1.0)).isfinite()
            for p in (top_p * (1 - 1e-7), top_p * (1 + 1e-7))
        ]
        finite = row.isfinite()
        ties = row.float() == (least.double() / temperature).float()  # equal logits stay together
        assert not (inside[0] & ~own & finite).any()
        assert not (own & ~inside[1] & ~ties & finite).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fused_top_k_threshold_is_smallest_kept_logit_across_signs(dtype: torch.dtype) -> None:
    """Above and below zero, where the order of bits turns."""
    logits = torch.tensor([[3.0, 1.0, 0.0, -0.0, -1.0, -3.0, -torch.inf]]).to(DEVICE, dtype)
    found = [support_floor(logits, top_k=k).item() for k in range(1, 7)]
    assert found == [3.0, 1.0, 0.0, 0.0, -1.0, -3.0]
    assert support_floor(logits, top_k=7).item() == -math.inf
    assert support_floor(logits - 5.0, top_p=0.999).item() == -8.0


def test_fused_support_threshold_of_a_row_does_not_depend_on_other_rows() -> None:
    logits = random(5, 5003, scale=2.0).to(DEVICE)
    together = support_floor(logits, top_k=900, top_p=0.9)
    alone = [support_floor(logits[row : row + 1], top_k=900, top_p=0.9) for row in range(5)]
    assert torch.equal(torch.cat(alone), together)


def test_fused_support_kernel_has_signature_of_eager_function() -> None:
    eager: Any = support._whole_floor
    assert inspect.signature(eager) == inspect.signature(fused.whole_floor)
