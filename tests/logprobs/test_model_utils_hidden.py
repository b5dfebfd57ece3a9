"""The facade's functions of hidden states, which are sequence-first and dealt over the
tensor-parallel ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import dense
import pytest
import torch
from ranks import Layout, Ranks
from sharded import VALUE, close, even, random, random_tokens
from torch import Tensor

from lockstep_logprobs import model_utils as facade

B, S, V, D = 2, 8, 24, 6


@dataclass(frozen=True)
class Case:
    """What a call is made with.

    Attributes:
        bounds: First token of each vocabulary shard, and V.
        chunk: The chunk size.
        shifts: Through the function that shifts the targets; else through the class, which is given
            them shifted.
        padding: Rows of each rank's weight that are no part of the vocabulary.
        frozen: The weight takes no gradient.
        cp: Context-parallel ranks.
    """

    bounds: tuple[int, ...]
    chunk: int | None = 3
    shifts: bool = True
    padding: int = 0
    frozen: bool = False
    cp: int = 1

    @property
    def tp(self) -> int:
        return len(self.bounds) - 1

    def positions(self, rank: int, length: int) -> list[int]:
        """Those whose hidden states a rank holds."""
        held = (
            dense.zigzag(length, self.cp, rank // self.tp) if self.cp > 1 else list(range(length))
        )
        share = len(held) // self.tp
        return held[rank % self.tp * share :][:share]


@dataclass(frozen=True)
class Outcome:
    result: Tensor
    hidden: Tensor | None
    weight: Tensor | None


def on_rank(
    layout: Layout, case: Case, hidden: Tensor, weight: Tensor, target: Tensor, upstream: Tensor
) -> Outcome:
    start, end = case.bounds[layout.tp_rank : layout.tp_rank + 2]
    filling = weight.new_full((case.padding, weight.shape[1]), 9.0)
    share = hidden[case.positions(layout.rank, len(hidden))].requires_grad_()
    head = torch.cat([weight[start:end], filling]).requires_grad_(not case.frozen)
    group = layout.tp_group
    if case.shifts:
        result = facade.from_parallel_hidden_states_to_logprobs(
            share,
            head,
            None,
            False,
            target,
            start,
            end,
            group,
            False,
            layout.cp_group_or_none,
            case.chunk,
        )
    else:
        result = facade.ChunkedDistributedHiddenStatesToLogprobs.apply(
            share, target, head, start, end, case.chunk, group, False
        )
    result.backward(upstream)
    return Outcome(result.detach(), share.grad, head.grad)


def reference(
    case: Case, hidden: Tensor, weight: Tensor, target: Tensor, upstream: Tensor
) -> tuple[Tensor, ...]:
    """Result and both gradients in float64."""
    hidden, weight = hidden.double().requires_grad_(), weight.double().requires_grad_()
    logits = hidden.transpose(0, 1) @ weight.T
    target = dense.shift(target) if case.shifts else target
    result = (
        dense.logprobs(logits, target)[:, :-1] if case.shifts else dense.logprobs(logits, target)
    )
    return result.detach(), *torch.autograd.grad(result, (hidden, weight), upstream.double())


def check(ranks: Ranks, case: Case, dtype: torch.dtype = torch.float32) -> None:
    hidden, weight = random(S, B, D, scale=1.0).to(dtype), random(V, D, seed=2, scale=1.0).to(dtype)
    args = (
        hidden,
        weight,
        random_tokens(B, S, vocabulary=V),
        random(B, S - case.shifts, seed=3, scale=1.0),
    )
    result, of_hidden, of_weight = reference(case, *args)
    # bf16: each logit is a product rounded to 8 bits, and so are gradients; |logit| is at most 8
    # here.
    tolerance = VALUE if dtype == torch.float32 else {"atol": 2.0**-5, "rtol": 2.0**-7}
    outcomes = ranks.run(on_rank, case, *args, tp=case.tp, cp=case.cp)
    for rank, outcome in enumerate(outcomes):
        assert outcome.result.dtype == torch.float32
        close(outcome.result, result, **tolerance)
        assert outcome.hidden is not None
        assert outcome.hidden.dtype == dtype
        close(outcome.hidden, case.cp * of_hidden[case.positions(rank, S)], **tolerance)
    for rank in range(case.tp):
        start, end = case.bounds[rank : rank + 2]
        own = outcomes[rank :: case.tp]
        weights = [outcome.weight for outcome in own if outcome.weight is not None]
        if case.frozen:
            assert not weights
            continue
        assert len(weights) == len(own) == case.cp
        # Each context-parallel rank has what its own positions add.
        whole = torch.stack(weights).sum(0)
        assert whole.dtype == dtype
        close(whole[: end - start], case.cp * of_weight[start:end], **tolerance)
        assert not whole[end - start :].any()


@pytest.mark.parametrize("tp", [1, 4])
@pytest.mark.parametrize("shifts", [True, False])
@pytest.mark.parametrize("chunk", [3, 1000, None])
def test_hidden_state_logprobs_and_gradients_match_float64(
    ranks: Ranks, tp: int, shifts: bool, chunk: int | None
) -> None:
    check(ranks, Case(even(V, tp), chunk, shifts))


@pytest.mark.parametrize(("tp", "cp"), [(1, 2), (1, 4), (2, 2)])
def test_hidden_state_logprobs_match_float64_on_cp_ranks(ranks: Ranks, tp: int, cp: int) -> None:
    """Positions are dealt over the context-parallel ranks first, and what one of these holds over
    its own.
    """
    check(ranks, Case(even(V, tp), cp=cp))


def weighed(
    layout: Layout, hidden: Tensor, weights: tuple[Tensor, Tensor | None], target: Tensor
) -> Tensor:
    layer, shared = weights
    return facade.from_parallel_hidden_states_to_logprobs(
        hidden, layer, shared, False, target, 0, V, layout.tp_group, True
    )


def test_shared_output_weight_replaces_layer_weight(ranks: Ranks) -> None:
    hidden, target = random(S, B, D), random_tokens(B, S, vocabulary=V)
    own, shared = random(V, D, seed=2), random(V, D, seed=3)
    (plain,), (tied,), (expected,) = (
        ranks.run(weighed, hidden, weights, target)
        for weights in ((own, None), (own, shared), (shared, None))
    )
    assert torch.equal(tied, expected)
    assert not torch.equal(tied, plain)


@pytest.mark.parametrize("bounds", [(0, 5, V), (0, 1, 3, 20, V)], ids=str)
@pytest.mark.parametrize("padding", [0, 3])
def test_hidden_state_logprobs_match_float64_on_uneven_and_padded_vocab_shards(
    ranks: Ranks, bounds: tuple[int, ...], padding: int
) -> None:
    check(ranks, Case(bounds, padding=padding))


@pytest.mark.parametrize("shifts", [True, False])
def test_a_frozen_head_has_no_gradient(ranks: Ranks, shifts: bool) -> None:
    check(ranks, Case(even(V, 2), shifts=shifts, frozen=True))


@pytest.mark.parametrize("chunk", [1, None])
def test_bf16_hidden_state_logprobs_match_float64_within_rounding(
    ranks: Ranks, chunk: int | None
) -> None:
    check(ranks, Case(even(V, 2), chunk), torch.bfloat16)
