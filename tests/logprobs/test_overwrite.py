"""Gradients that are written over the logits: the same bits, no copy, and no second use of what is
lost.
"""

from __future__ import annotations

import pytest
import torch
from sharded import random, random_tokens
from torch import Tensor

from lockstep_logprobs import Scoring, vocab_logprobs

M, V = 6, 4000
TOKEN = random_tokens(M, 3, vocabulary=V + 2) - 1


def gradient_of(
    leaf: Tensor, logits: Tensor, *, overwrite: bool, floor: Tensor | None = None
) -> Tensor:
    """The gradient of a leaf from which the logits were made."""
    logprob, entropy = vocab_logprobs(
        logits, TOKEN, Scoring(entropy=True, overwrite=overwrite), floor
    )
    assert entropy is not None
    leaf.grad = None
    (logprob.masked_fill(logprob.isneginf(), 0.0).sum() + entropy.sum()).backward()
    assert leaf.grad is not None
    return leaf.grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kept", [None, 9])
def test_overwritten_logits_hold_bit_identical_gradient(
    dtype: torch.dtype, kept: int | None
) -> None:
    leaf = random(M, V + 8).to(dtype).requires_grad_()
    floor = None if kept is None else leaf[:, :V].detach().float().topk(kept).values[:, -1]
    plain, over = (
        gradient_of(leaf, (leaf * 1.0)[:, :V], overwrite=overwrite, floor=floor)
        for overwrite in (False, True)
    )
    assert torch.equal(plain, over)


@pytest.mark.parametrize("logits", ["apart", "overlapping"])
def test_non_overwritable_logits_get_same_gradient_in_new_memory(logits: str) -> None:
    leaf = random(V, M).requires_grad_() if logits == "apart" else random(1, V).requires_grad_()
    made = [(leaf * 1.0).t() if logits == "apart" else (leaf * 1.0).expand(M, V) for _ in range(2)]
    plain, over = (
        gradient_of(leaf, made[0], overwrite=False),
        gradient_of(leaf, made[1], overwrite=True),
    )
    assert torch.equal(plain, over)
