"""The facade's functions over k picked columns: top-k, raw logits at given ids, and
distillation.
"""

from __future__ import annotations

from collections.abc import Callable

import dense
import pytest
import torch
from ranks import Collectives, Layout, Ranks
from sharded import GRADIENT, VALUE, Cut, Place, close, dense_of, even, random, random_tokens, run
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

from lockstep_logprobs import model_utils as facade

B, S, V, K = 2, 16, 24, 4
LAYOUTS = [(1, 1), (2, 1), (4, 1), (1, 2), (1, 4), (2, 2)]
ON_LAYOUTS = pytest.mark.parametrize(("tp", "cp"), LAYOUTS)


# Top-k.
# --------------------------------------------------------------------------------------------------------------


def top(
    layout: Layout, cut: Cut, logits: Tensor, k: int, chunk: int | None
) -> tuple[Tensor, Tensor, int]:
    local = cut.local(logits, layout.tp_rank, 0).requires_grad_()
    start, end = cut.bounds[layout.tp_rank : layout.tp_rank + 2]
    with Collectives() as collectives:
        values, ids = facade.distributed_vocab_topk(
            local,
            k,
            layout.tp_group,
            vocab_start_index=start,
            vocab_end_index=end,
            chunk_size=chunk,
        )
    assert not values.requires_grad
    return values, ids, collectives.counts.total()


@pytest.mark.parametrize("k", [1, 5, 11, V, V + 3])
@pytest.mark.parametrize("bounds", [(0, V), even(V, 2), even(V, 4), (0, 3, 20, V)], ids=str)
@pytest.mark.parametrize("chunk", [3, None])
def test_distributed_vocab_topk_matches_torch_topk(
    ranks: Ranks, bounds: tuple[int, ...], k: int, chunk: int | None
) -> None:
    """Also where k is more than a shard, or the vocabulary, holds; padding is no candidate."""
    logits, cut = random(B, S, V), Cut(bounds, padding=2)
    expected = logits.topk(min(k, V))
    for values, ids, collectives in ranks.run(top, cut, logits, k, chunk, tp=cut.tp):
        assert values.dtype == torch.float32
        assert ids.dtype == torch.int64
        assert torch.equal(values, expected.values)
        assert torch.equal(ids, expected.indices)
        assert collectives <= 2


# Raw logits at given ids.
# --------------------------------------------------------------------------------------------


def gathered(logits: Tensor, place: Place, index: Tensor, chunk: int | None) -> Tensor:
    layout = place.layout
    return facade.gather_logits_at_global_indices(
        logits,
        index,
        layout.tp_group if layout.tp > 1 else None,
        layout.cp_group_or_none,
        vocab_start_index=place.start,
        vocab_end_index=place.end,
        chunk_size=chunk,
    )


def dense_gathered(logits: Tensor, index: Tensor) -> Tensor:
    inside = (index >= 0) & (index < V)
    picked = logits[:, : index.shape[1]].gather(-1, index.clamp(0, V - 1))
    return torch.where(inside, picked, 0.0)


@ON_LAYOUTS
@pytest.mark.parametrize(("chunk", "length"), [(None, S), (3, S - 3)])
def test_logits_gathered_at_global_indices_match_full_logits(
    ranks: Ranks, tp: int, cp: int, chunk: int | None, length: int
) -> None:
    """Ids for fewer positions than there are logits are those of the first; duplicates add;
    strangers give nothing.
    """
    length = S if cp == 1 else length
    logits, index = random(B, S, V), random_tokens(B, length, K, vocabulary=V)
    index[0, 0] = torch.tensor([7, 7, -100, V])
    upstream = [random(B, length, K, seed=4, scale=1.0)]
    together = run(
        ranks, gathered, Cut(even(V, tp), cp, padding=1), logits, index, chunk, upstream=upstream
    )
    (value,), gradient = dense_of(dense_gathered, logits, index, upstream=upstream)
    assert torch.equal(together.result, value.float())
    close(together.gradient, cp * gradient)
    assert together.forward["allreduce"] <= 1
    assert together.forward.total() <= 2
    assert together.backward.total() <= (1 if cp > 1 else 0)


# Distillation.
# -------------------------------------------------------------------------------------------------------


Distilled = tuple[Tensor, Tensor, Tensor | None]


def distilled(
    logits: Tensor, place: Place, teacher: Tensor, index: Tensor, zero_outside: bool, entropy: bool
) -> Distilled:
    layout = place.layout
    return facade.get_distillation_topk_logprobs_from_logits(
        logits,
        teacher,
        index,
        zero_outside,
        entropy,
        layout.tp_rank,
        layout.tp_group,
        layout.cp_group_or_none,
    )


def distilled_without_tp_group(
    logits: Tensor, place: Place, teacher: Tensor, index: Tensor, zero_outside: bool, entropy: bool
) -> Distilled:
    group = place.layout.cp_group_or_none
    return facade.get_distillation_topk_logprobs_from_logits(
        logits, teacher, index, zero_outside, entropy, context_parallel_group=group
    )


def distilled_from_dtensor(
    logits: Tensor, place: Place, teacher: Tensor, index: Tensor, zero_outside: bool, entropy: bool
) -> Distilled:
    layout = place.layout
    mesh = layout.mesh("cp", "tp") if layout.cp > 1 else layout.mesh("tp")
    student = DTensor.from_local(
        logits, mesh, [Shard(1), Shard(2)] if layout.cp > 1 else [Shard(2)]
    )
    return facade.get_distillation_topk_logprobs_from_logits(
        student, teacher, index, zero_outside, entropy
    )


def dense_distilled(
    logits: Tensor, teacher: Tensor, index: Tensor, zero_outside: bool, entropy: bool
) -> tuple[Tensor, ...]:
    """Nothing is shifted; the last position is dropped.

    The entropy is that of the whole vocabulary in either case.
    """
    logits = logits[:, : index.shape[1]]
    student = (
        dense.picked_logprobs(logits, index)
        if zero_outside
        else logits.gather(-1, index).log_softmax(-1)
    )
    results = student[:, :-1], teacher.double().log_softmax(-1)[:, :-1]
    return (*results, dense.sum_p_log_p(logits)[:, :-1]) if entropy else results


def check(
    ranks: Ranks,
    function: Callable[..., Distilled],
    cut: Cut,
    logits: Tensor,
    index: Tensor,
    zero_outside: bool,
    entropy: bool,
) -> None:
    length = index.shape[1]
    teacher = random(*index.shape, seed=7).to(logits.dtype)
    upstream = [random(B, length - 1, index.shape[-1], seed=5, scale=1.0), None]
    upstream += [random(B, length - 1, seed=6, scale=1.0)] if entropy else []
    args = (teacher, index, zero_outside, entropy)
    together = run(ranks, function, cut, logits, *args, upstream=upstream)
    values, gradient = dense_of(dense_distilled, logits, *args, upstream=upstream)
    for result, value in zip(together.results, values, strict=True):
        assert result.dtype == torch.float32
        close(result, value, **VALUE)
    # The gradient of Σ p log p is larger than 1 by a factor of log p.
    tolerance = {"atol": 4 * cut.cp * GRADIENT["atol"], "rtol": 2 * GRADIENT["rtol"]}
    if logits.dtype == torch.bfloat16:
        tolerance["rtol"] = 2.0**-8
    close(together.gradient, cut.cp * gradient, **tolerance)
    # One softmax for all: two sums over tensor-parallel ranks, and one exchange over
    # context-parallel ones.
    assert together.forward["allreduce"] <= 2
    assert together.forward.total() <= 2 + (cut.cp > 1), together.forward
    assert together.backward.total() <= (cut.cp > 1), together.backward


@ON_LAYOUTS
@pytest.mark.parametrize("zero_outside", [True, False])
@pytest.mark.parametrize("entropy", [True, False])
@pytest.mark.parametrize("function", [distilled, distilled_from_dtensor])
def test_distillation_topk_logprobs_and_gradients_match_float64(
    ranks: Ranks,
    function: Callable[..., Distilled],
    tp: int,
    cp: int,
    zero_outside: bool,
    entropy: bool,
) -> None:
    logits, index = random(B, S, V), random(B, S, V, seed=2).topk(K).indices
    check(ranks, function, Cut(even(V, tp), cp), logits, index, zero_outside, entropy)


@pytest.mark.parametrize("zero_outside", [True, False])
@pytest.mark.parametrize("entropy", [True, False])
@pytest.mark.parametrize("cp", [1, 2, 4])
def test_distillation_topk_logprobs_match_float64_without_tp_group(
    ranks: Ranks, cp: int, zero_outside: bool, entropy: bool
) -> None:
    logits, index = random(B, S, V), random(B, S, V, seed=2).topk(K).indices
    check(ranks, distilled_without_tp_group, Cut((0, V), cp), logits, index, zero_outside, entropy)


@pytest.mark.parametrize("zero_outside", [True, False])
def test_distillation_topk_logprobs_ignore_cp_padding(ranks: Ranks, zero_outside: bool) -> None:
    index = random_tokens(B, S - 3, K, vocabulary=V)
    check(ranks, distilled, Cut(even(V, 2), 2), random(B, S, V), index, zero_outside, True)


def test_distillation_gradient_is_exactly_zero_outside_top_k() -> None:
    """Not even by rounding: an optimizer such as Adam makes steps of a gradient however small."""
    logits = torch.randn(2, 5, 40, requires_grad=True)
    index = torch.randint(40, (2, 5, 3))
    student, teacher, _ = facade.get_distillation_topk_logprobs_from_logits(
        logits, torch.randn(2, 5, 3), index, zero_outside_topk=False, calculate_entropy=False
    )
    (teacher.exp() * student).sum().backward()
    assert logits.grad is not None
    outside = torch.ones(2, 5, 40, dtype=torch.bool).scatter(2, index, False)
    assert (logits.grad[outside] == 0).all()
