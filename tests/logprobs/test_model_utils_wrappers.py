"""The facade's functions that shift the targets: a sequence in each row, over TP, CP and both, and
DTensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dense
import pytest
import torch
from ranks import Layout, Ranks
from sharded import (
    GRADIENT,
    VALUE,
    Cut,
    Place,
    Together,
    close,
    dense_of,
    even,
    random,
    random_tokens,
    run,
)
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard

from lockstep_logprobs import model_utils as facade
from lockstep_logprobs.logits_sampling_utils import TrainingSamplingParams

B, S, V = 2, 16, 24
TOP_K = TrainingSamplingParams(top_k=6)
TOP_P = TrainingSamplingParams(top_p=0.7)
BOTH = TrainingSamplingParams(top_k=9, top_p=0.8)
SAMPLING = (None, TrainingSamplingParams(), TOP_K, TOP_P, BOTH)
LAYOUTS = [(1, 1), (2, 1), (4, 1), (1, 2), (1, 4), (2, 2)]
ON_LAYOUTS = pytest.mark.parametrize(("tp", "cp"), LAYOUTS)


# On the ranks.
# -----------------------------------------------------------------------------------------------------


def plain(logits: Tensor, place: Place, target: Tensor, chunk: int | None, sampling: Any) -> Tensor:
    layout = place.layout
    return facade.from_parallel_logits_to_logprobs(
        logits, target, *place.bounds_and_group, False, layout.cp_group_or_none, chunk, sampling
    )


def next_token(
    logits: Tensor, place: Place, target: Tensor, chunk: int | None, sampling: Any
) -> Tensor:
    layout = place.layout
    return facade.get_next_token_logprobs_from_logits(
        target, logits, None, layout.tp_rank, layout.tp_group, layout.cp_group_or_none, sampling
    )


def seq_index(layout: Layout, length: int) -> Tensor:
    """For each place in the concatenation of what the CP ranks hold, the position that lies
    there.
    """
    return torch.tensor(
        [
            position
            for rank in range(layout.cp)
            for position in dense.zigzag(length, layout.cp, rank)
        ]
    )


def as_dtensor(layout: Layout, target: Tensor) -> DTensor | Tensor:
    """The target as a model with context parallelism is given it: dealt over "cp", the same on each
    "tp".
    """
    if layout.cp == 1:
        return target
    share = target[:, dense.zigzag(target.shape[1], layout.cp, layout.cp_rank)]
    return DTensor.from_local(share, layout.mesh("cp", "tp"), [Shard(1), Replicate()])


def by_dtensor_target(
    logits: Tensor, place: Place, target: Tensor, chunk: int | None, sampling: Any
) -> Tensor:
    layout = place.layout
    index = seq_index(layout, target.shape[1]) if layout.cp > 1 else None
    return facade.dtensor_from_parallel_logits_to_logprobs(
        logits, as_dtensor(layout, target), *place.bounds_and_group, False, index, chunk, sampling
    )


def sharded_logits(logits: Tensor, layout: Layout, vocabulary: int) -> DTensor:
    shape = torch.Size((logits.shape[0], logits.shape[1] * layout.cp, vocabulary))
    mesh, placements = (
        (layout.mesh("cp", "tp"), [Shard(1), Shard(2)])
        if layout.cp > 1
        else (layout.mesh("tp"), [Shard(2)])
    )
    return DTensor.from_local(
        logits,
        mesh,
        placements,
        run_check=False,
        shape=shape,
        stride=torch.empty(shape, device="meta").stride(),
    )


def by_dtensor_logits(
    logits: Tensor, place: Place, target: Tensor, chunk: int | None, sampling: Any
) -> Tensor:
    layout = place.layout
    index = seq_index(layout, target.shape[1]) if layout.cp > 1 else None
    return facade.get_logprobs_from_vocab_parallel_logits(
        sharded_logits(logits, layout, V), as_dtensor(layout, target), index, chunk, sampling
    )


def next_token_of_dtensor(
    logits: Tensor, place: Place, target: Tensor, chunk: None, sampling: Any
) -> Tensor:
    layout = place.layout
    index = seq_index(layout, target.shape[1]) if layout.cp > 1 else None
    return facade.get_next_token_logprobs_from_logits(
        as_dtensor(layout, target),
        sharded_logits(logits, layout, V),
        index,
        sampling_params=sampling,
    )


# In float64, and the comparison.
# -------------------------------------------------------------------------------------


def reference(
    logits_BSV: Tensor, target_BS: Tensor, sampling: TrainingSamplingParams | None = None
) -> Tensor:
    """Position t scores token t + 1; the last position scores nothing and is dropped."""
    sampling = sampling or TrainingSamplingParams()
    length = target_BS.shape[1]
    support = dense.filtered(logits_BSV[:, :length], sampling.top_k, sampling.top_p)
    return dense.logprobs(support, dense.shift(target_BS))[:, :-1]


def targets_in_support(logits: Tensor) -> Tensor:
    """The next token of position t is the second likeliest there, so that no filter leaves it
    out.
    """
    return logits.topk(2).indices[..., 1].roll(1, -1)


def check(
    ranks: Ranks,
    function: Callable[..., Tensor],
    cut: Cut,
    logits: Tensor,
    target: Tensor,
    *,
    chunk: int | None = None,
    sampling: TrainingSamplingParams | None = None,
    scale: float = 1.0,
) -> Together:
    """`scale` is what the gradient is a multiple of: each CP rank computes the whole loss, and all
    are summed.
    """
    upstream = [random(target.shape[0], target.shape[1] - 1, seed=5, scale=1.0)]
    together = run(ranks, function, cut, logits, target, chunk, sampling, upstream=upstream)
    (value,), gradient = dense_of(reference, logits, target, sampling, upstream=upstream)
    assert together.result.dtype == torch.float32
    close(together.result, value, **VALUE)
    close(together.gradient, scale * gradient, atol=scale * GRADIENT["atol"], rtol=GRADIENT["rtol"])
    return together


SUMMED = {"from_parallel": plain, "next_token": next_token}
NOT_SUMMED = {
    "dtensor_target": by_dtensor_target,
    "dtensor_logits": by_dtensor_logits,
    "next": next_token_of_dtensor,
}


@ON_LAYOUTS
@pytest.mark.parametrize("name", [*SUMMED, *NOT_SUMMED])
def test_next_token_logprobs_and_gradients_match_float64_on_tp_and_cp_ranks(
    ranks: Ranks, name: str, tp: int, cp: int
) -> None:
    """The gradient is the number of CP ranks times that of one process, save for DTensors, where it
    is the same.
    """
    function, scale = (SUMMED[name], cp) if name in SUMMED else (NOT_SUMMED[name], 1)
    target = random_tokens(B, S, vocabulary=V)
    together = check(ranks, function, Cut(even(V, tp), cp), random(B, S, V), target, scale=scale)
    if name in SUMMED:  # one exchange over context-parallel ranks
        assert together.forward.total() <= 2 + (cp > 1), together.forward
        assert together.forward["allreduce"] <= 2
        assert together.backward.total() <= (cp > 1), together.backward
        assert not together.waits


@pytest.mark.parametrize("sampling", SAMPLING, ids=str)
@pytest.mark.parametrize("name", [*SUMMED, *NOT_SUMMED])
def test_next_token_logprobs_match_float64_for_every_sampling_filter(
    ranks: Ranks, name: str, sampling: TrainingSamplingParams | None
) -> None:
    function, scale = (SUMMED[name], 2) if name in SUMMED else (NOT_SUMMED[name], 1)
    logits = random(B, S, V)
    cut = Cut(even(V, 2), 2)
    check(ranks, function, cut, logits, targets_in_support(logits), sampling=sampling, scale=scale)


@pytest.mark.parametrize("name", SUMMED)
@pytest.mark.parametrize("length", [S - 1, S - 5])
def test_cp_padding_of_logits_does_not_change_next_token_logprobs(
    ranks: Ranks, name: str, length: int
) -> None:
    """The row is shifted before it is filled up, so the filling is scored by no position that is
    returned.
    """
    target = random_tokens(B, length, vocabulary=V)
    check(ranks, SUMMED[name], Cut(even(V, 2), 2), random(B, S, V), target, scale=2)


@pytest.mark.parametrize(("top_k", "top_p"), [(None, 1.0), (9, 1.0), (None, 0.8), (9, 0.8)])
@pytest.mark.parametrize("name", [*SUMMED, *NOT_SUMMED])
def test_next_token_logprobs_ignore_temperature_in_sampling_params(
    ranks: Ranks, name: str, top_k: int | None, top_p: float
) -> None:
    """Whoever calls the facade has scaled its logits already; scaling twice is what must not
    happen.
    """
    function, logits = (SUMMED | NOT_SUMMED)[name], random(B, S, V)
    target, upstream = targets_in_support(logits), [torch.ones(B, S - 1)]
    cold, plainly = (
        run(
            ranks,
            function,
            Cut(even(V, 2)),
            logits,
            target,
            None,
            TrainingSamplingParams(top_k, top_p, temperature),
            upstream=upstream,
        )
        for temperature in (0.5, 1.0)
    )
    assert torch.equal(cold.result, plainly.result)
    assert torch.equal(cold.gradient, plainly.gradient)
