"""What the reference gets wrong, on the kernels: excluded logits, foreign targets, supports,
repetitions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dense
import pytest
import torch
from ranks import Ranks
from sharded import GRADIENT, VALUE, Cut, Place, close, dense_of, even, random, run
from torch import Tensor

from lockstep_logprobs import model_utils as facade

B, S, V, K = 2, 4, 16, 3
TWO = Cut(even(V, 2))


def sampled(
    logits: Tensor, place: Place, target: Tensor, top_k: int | None, top_p: float
) -> Tensor:
    return facade.DistributedLogprobWithSampling.apply(
        logits, target, place.layout.tp_group, top_k, top_p
    )


def chunk_sampled(
    logits: Tensor, place: Place, target: Tensor, top_k: int | None, top_p: float
) -> Tensor:
    return facade.ChunkedDistributedLogprobWithSampling.apply(
        logits, target, place.layout.tp_group, top_k, top_p, 3
    )


def dense_sampled(logits: Tensor, target: Tensor, top_k: int | None, top_p: float) -> Tensor:
    return dense.logprobs(dense.filtered(logits, top_k, top_p), target)


def compare(
    ranks: Ranks,
    function: Callable[..., Any],
    reference: Callable[..., Any],
    cut: Cut,
    logits: Tensor,
    *args: object,
) -> tuple[Tensor, Tensor]:
    """Equal to float64; the gradient of a logit that is -inf moves nothing, so that it is free, but
    it is a number.
    """
    upstream = [random(*reference(logits.double(), *args).shape, seed=3, scale=1.0)]
    together = run(ranks, function, cut, logits, *args, upstream=upstream)
    (value,), gradient = dense_of(reference, logits, *args, upstream=upstream)
    close(together.result, value, **VALUE)
    assert together.gradient.isfinite().all()
    finite = logits.isfinite()
    close(together.gradient[finite], gradient[finite], **GRADIENT)
    return together.result, together.gradient


# Supports.
# -----------------------------------------------------------------------------------------------------------


SUPPORTS = [
    (1, 1.0),
    (3, 1.0),
    (None, 0.5),
    (None, 0.99),
    (3, 0.5),
    (V, 0.9),
    (V + 5, 1.0),
    (V + 5, 0.5),
]
OFF = [(None, 1.0), (0, 1.0), (-1, 1.0), (None, 2.0)]


@pytest.mark.parametrize("function", [sampled, chunk_sampled])
@pytest.mark.parametrize(("top_k", "top_p"), [*SUPPORTS, *OFF, (None, 0.0), (4, 0.0)])
@pytest.mark.parametrize("tp", [1, 4])
def test_sampled_logprobs_match_float64_for_every_top_k_and_top_p(
    ranks: Ranks, function: Any, top_k: int | None, top_p: float, tp: int
) -> None:
    """Also more than the vocabulary, filters that are off, and a probability of 0, which leaves the
    likeliest.
    """
    logits = random(B, S, V)
    cut = Cut(even(V, tp))
    _, gradient = compare(
        ranks, function, dense_sampled, cut, logits, logits.argmax(-1), top_k, top_p
    )
    outside = dense.filtered(logits.double(), top_k, top_p).isneginf()
    assert not gradient[outside].any()


@pytest.mark.parametrize("function", [sampled, chunk_sampled])
def test_target_outside_support_has_logprob_minus_inf_and_finite_gradient(
    ranks: Ranks, function: Any
) -> None:
    """Minus infinity; where its upstream gradient is 0, as a mask makes it, the row's gradient is
    exactly 0.
    """
    logits = random(B, S, V)
    target = logits.argmin(-1)
    target[1] = logits[1].argmax(-1)
    upstream = torch.ones(B, S)
    upstream[0] = 0.0
    together = run(ranks, function, TWO, logits, target, 3, 0.9, upstream=[upstream])
    assert together.result[0].isneginf().all()
    assert together.result[1].isfinite().all()
    assert not together.gradient[0].any()
    assert together.gradient.isfinite().all()
    loud = run(ranks, function, TWO, logits, target, 3, 0.9, upstream=[torch.ones(B, S)])
    assert loud.gradient.isfinite().all()
