"""The names that NeMo RL's module got last: sharded log-softmax, chosen columns, argmax, shifts and
sums over ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import dense
import pytest
import torch
from ranks import Layout, Ranks
from sharded import GRADIENT, VALUE, close, even, random, random_tokens
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

from lockstep_logprobs import logits_sampling_utils
from lockstep_logprobs import model_utils as facade

B, S, V = 2, 8, 24
UPSTREAM = random(B, S, V, seed=3, scale=1.0)


@dataclass
class ForeignParams:
    """Sampling parameters of another program: NeMo RL's class has these fields and no more."""

    top_k: int | None = None
    top_p: float = 1.0
    temperature: float = 1.0


def own_columns(x: Tensor, layout: Layout) -> Tensor:
    return x.chunk(layout.tp, -1)[layout.tp_rank].contiguous()


def log_softmax(
    layout: Layout, logits: Tensor, temperature: float, name: str
) -> tuple[Tensor, Tensor]:
    """This rank's result and gradient."""
    own = own_columns(logits, layout).requires_grad_()
    if name == "_compute_distributed_log_softmax_with_grad":
        result = facade._compute_distributed_log_softmax_with_grad(own, layout.tp_group)
    elif name == "a DTensor":
        placed = DTensor.from_local(own, layout.mesh("tp"), [Shard(2)], run_check=False)
        result = facade.vocab_parallel_log_softmax(placed, temperature, tp_group=layout.tp_group)
    else:
        result = facade.vocab_parallel_log_softmax(own, temperature, tp_group=layout.tp_group)
    result.backward(own_columns(UPSTREAM, layout))
    assert own.grad is not None
    return result.detach(), own.grad


@pytest.mark.parametrize("tp", [1, 4])
@pytest.mark.parametrize(
    ("name", "temperature"),
    [
        ("_compute_distributed_log_softmax_with_grad", 1.0),
        ("vocab_parallel_log_softmax", 0.7),
        ("a DTensor", 1.3),
    ],
)
def test_vocab_parallel_log_softmax_and_gradient_match_float64(
    ranks: Ranks, tp: int, name: str, temperature: float
) -> None:
    logits = random(B, S, V)
    outcomes = ranks.run(log_softmax, logits, temperature, name, tp=tp)
    exact = logits.double().requires_grad_()
    expected = (exact / temperature).log_softmax(-1)
    expected.backward(UPSTREAM.double())
    assert exact.grad is not None
    close(torch.cat([value for value, _ in outcomes], -1), expected.detach(), **VALUE)
    close(torch.cat([gradient for _, gradient in outcomes], -1), exact.grad, **GRADIENT)


def full(layout: Layout, logits: Tensor) -> tuple[Tensor, Tensor]:
    own = own_columns(logits, layout).requires_grad_()
    result = facade.vocab_parallel_full_log_softmax(own, 0.7, tp_group=layout.tp_group)
    (result * UPSTREAM).sum().backward()
    assert own.grad is not None
    return result.detach(), own.grad


@pytest.mark.parametrize("tp", [1, 2])
def test_full_log_softmax_gradient_counts_replicated_loss_once(ranks: Ranks, tp: int) -> None:
    logits = random(B, S, V)
    outcomes = ranks.run(full, logits, tp=tp)
    exact = logits.double().requires_grad_()
    expected = (exact / 0.7).log_softmax(-1)
    (expected * UPSTREAM).sum().backward()
    assert exact.grad is not None
    for value, _ in outcomes:
        close(value, expected.detach(), **VALUE)
    close(torch.cat([gradient for _, gradient in outcomes], -1), exact.grad, **GRADIENT)


def columns(layout: Layout, logits: Tensor, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    own = own_columns(logits, layout).requires_grad_()
    result = facade.vocab_parallel_gather_columns(own, ids, tp_group=layout.tp_group)
    (result * UPSTREAM[..., : len(ids)]).sum().backward()
    assert own.grad is not None
    return result.detach(), own.grad, facade.vocab_parallel_argmax(own, tp_group=layout.tp_group)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tp", [1, 4])
def test_vocab_parallel_gather_columns_and_argmax_match_full_logits(
    ranks: Ranks, tp: int, dtype: torch.dtype
) -> None:
    logits, ids = random(B, S, V).to(dtype), torch.tensor([23, 0, 7, 7, 12])
    outcomes = ranks.run(columns, logits, ids, tp=tp)
    expected = torch.zeros(B, S, V)
    expected.index_add_(-1, ids, UPSTREAM[..., : len(ids)])
    for value, _, largest in outcomes:
        assert value.dtype == torch.float32
        assert torch.equal(value, logits[..., ids].float())
        assert torch.equal(logits.gather(-1, largest[..., None])[..., 0], logits.amax(-1))
    twice_rounded = {} if dtype == torch.float32 else {"atol": 0.0, "rtol": 2.0**-6}
    close(
        torch.cat([gradient for _, gradient, _ in outcomes], -1),
        expected.to(dtype),
        **twice_rounded,
    )


def test_gather_columns_and_argmax_work_without_process_group() -> None:
    logits = random(B, S, V)
    ids = torch.tensor([3, 21])
    assert torch.equal(facade.vocab_parallel_gather_columns(logits, ids), logits[..., ids])
    assert torch.equal(facade.vocab_parallel_argmax(logits), logits.argmax(-1))


def shifted(layout: Layout, whole: Tensor, fill: float) -> tuple[Tensor, Tensor | None]:
    own = whole.chunk(layout.cp, 1)[layout.cp_rank].contiguous()
    own.requires_grad_(own.is_floating_point())
    result = facade.cp_shift_next(own, layout.cp_group_or_none, fill=fill)
    if own.is_floating_point():
        result.backward(UPSTREAM[..., 0].chunk(layout.cp, 1)[layout.cp_rank])
    return result.detach(), own.grad


@pytest.mark.parametrize("cp", [1, 2, 4])
@pytest.mark.parametrize("integer", [True, False])
def test_cp_shift_next_shifts_across_contiguous_cp_ranks(
    ranks: Ranks, cp: int, integer: bool
) -> None:
    whole = random_tokens(B, S, vocabulary=V) if integer else random(B, S)
    outcomes = ranks.run(shifted, whole, -1.0, cp=cp)
    expected = torch.cat([whole[:, 1:], torch.full_like(whole[:, :1], -1)], 1)
    assert torch.equal(torch.cat([value for value, _ in outcomes], 1), expected)
    if not integer:
        gradient = torch.cat([torch.zeros(B, 1), UPSTREAM[:, :-1, 0]], 1)
        close(torch.cat([gradient for _, gradient in outcomes], 1), gradient)


def consecutive(layout: Layout, whole: Tensor) -> tuple[Tensor, Tensor]:
    own = whole[:, dense.zigzag(S, layout.cp, layout.cp_rank)] if layout.cp > 1 else whole.clone()
    own.requires_grad_()
    result = facade.cp_load_balanced_to_contiguous(own, cp_group=layout.cp_group_or_none)
    (result * UPSTREAM.chunk(layout.cp, 1)[layout.cp_rank]).sum().backward()
    assert own.grad is not None
    return result.detach(), own.grad


@pytest.mark.parametrize("cp", [1, 2, 4])
def test_cp_load_balanced_to_contiguous_restores_token_order_and_gradient(
    ranks: Ranks, cp: int
) -> None:
    whole = random(B, S, V)
    outcomes = ranks.run(consecutive, whole, cp=cp)
    assert torch.equal(torch.cat([value for value, _ in outcomes], 1), whole)
    for rank, (_, gradient) in enumerate(outcomes):
        held = dense.zigzag(S, cp, rank) if cp > 1 else list(range(S))
        close(gradient, UPSTREAM[:, held])


def sums(layout: Layout, values: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    own = values[layout.tp_rank].clone().requires_grad_()
    total = facade.group_all_reduce_sum_with_grad(own, layout.tp_group)
    (2.0 * total).backward()
    constant = facade.group_all_reduce_sum(own, layout.tp_group)
    assert not constant.requires_grad
    return total.detach(), constant, own.grad


@pytest.mark.parametrize("tp", [1, 4])
def test_group_all_reduce_sum_with_grad_passes_gradient_unscaled(ranks: Ranks, tp: int) -> None:
    values = random(tp)
    for total, constant, gradient in ranks.run(sums, values, tp=tp):
        close(total, values.sum())
        assert torch.equal(total, constant)
        assert gradient == 2.0
    alone: Any = None
    assert facade.group_all_reduce_sum_with_grad(values, alone) is values


def scored(layout: Layout, logits: Tensor, target: Tensor, params: object) -> Tensor:
    own = own_columns(logits, layout)
    start, end = even(V, layout.tp)[layout.tp_rank : layout.tp_rank + 2]
    return facade.from_parallel_logits_to_logprobs(
        own,
        target,
        start,
        end,
        layout.tp_group,
        sampling_params=params,  # pyright: ignore[reportArgumentType]
    )


@pytest.mark.parametrize(
    "filters", [{}, {"top_k": 5}, {"top_p": 0.8}, {"top_k": 9, "top_p": 0.8, "temperature": 3.0}]
)
def test_foreign_sampling_params_class_gives_same_logprobs(
    ranks: Ranks, filters: dict[str, Any]
) -> None:
    logits, target = random(B, S, V), random_tokens(B, S, vocabulary=V)
    [foreign, *_] = ranks.run(scored, logits, target, ForeignParams(**filters), tp=2)
    [ours, *_] = ranks.run(scored, logits, target, facade.TrainingSamplingParams(**filters), tp=2)
    assert torch.equal(foreign, ours)


def test_only_top_k_or_top_p_needs_filtering() -> None:
    needed = logits_sampling_utils.need_top_k_or_top_p_filtering
    assert logits_sampling_utils.TOP_K_TOP_P_CHUNK_SIZE == 256
    assert not needed(None)
    assert not needed(ForeignParams())
    assert not needed(ForeignParams(top_k=-1, temperature=0.3))
    assert needed(ForeignParams(top_k=1))
    assert needed(ForeignParams(top_p=0.99))
