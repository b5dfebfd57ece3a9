"""Packed rows: sequences one after another, each shifted and dealt over the context-parallel ranks
on its own.
"""

from __future__ import annotations

import itertools
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

from lockstep_logprobs import model_utils as facade
from lockstep_logprobs.logits_sampling_utils import TrainingSamplingParams

V = 20
LENGTHS = (8, 16, 8, 24)
BOTH = TrainingSamplingParams(top_k=7, top_p=0.8)
LAYOUTS = [(1, 1), (2, 1), (4, 1), (1, 2), (1, 4), (2, 2)]


def cumulative(lengths: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sum(lengths[:number]) for number in range(len(lengths) + 1))


def packed(
    logits: Tensor,
    place: Place,
    target: Tensor,
    cu_seqlens: Tensor,
    width: int,
    chunk: int | None = None,
    sampling: Any = None,
    pre_rolled: bool = False,
) -> Tensor:
    layout = place.layout
    if pre_rolled:
        target = dealt(target, cu_seqlens.tolist(), layout)
    return facade.from_parallel_logits_to_logprobs_packed_sequences(
        logits,
        target,
        cu_seqlens,
        width,
        *place.bounds_and_group,
        False,
        layout.cp_group_or_none,
        chunk,
        sampling,
        pre_rolled,
    )


def dealt(target: Tensor, cu_seqlens: list[int], layout: Layout) -> Tensor:
    """Each sequence's next tokens, those of this rank."""
    pieces = itertools.pairwise(cu_seqlens)
    rolled = torch.cat([target[:, start:end].roll(-1, -1) for start, end in pieces], -1)
    return (
        rolled
        if layout.cp == 1
        else rolled[:, dense.packed_zigzag(cu_seqlens, layout.cp, layout.cp_rank)]
    )


def reference(
    logits: Tensor,
    target: Tensor,
    cu_seqlens: tuple[int, ...],
    width: int,
    sampling: TrainingSamplingParams | None,
) -> Tensor:
    sampling = sampling or TrainingSamplingParams()
    support = dense.filtered(logits[0], sampling.top_k, sampling.top_p)
    return dense.packed_logprobs(support, target[0], cu_seqlens, width)


def check(
    ranks: Ranks,
    lengths: tuple[int, ...],
    width: int,
    *,
    tp: int = 1,
    cp: int = 1,
    bounds: tuple[int, ...] | None = None,
    padding: int = 0,
    chunk: int | None = None,
    sampling: TrainingSamplingParams | None = None,
    pre_rolled: bool = False,
) -> Together:
    """Values are those of float64, and gradients `cp` times as large."""
    cu_seqlens = cumulative(lengths)
    logits, target = random(1, sum(lengths), V), random_tokens(1, sum(lengths), vocabulary=V)
    if sampling is not None:
        target = logits.topk(2).indices[..., 1].roll(1, -1)
    upstream = [random(len(lengths), width - 1, seed=5, scale=1.0)]
    cut = Cut(bounds or even(V, tp), cp, padding, cu_seqlens)
    index = torch.tensor(cu_seqlens, dtype=torch.int32)
    together = run(
        ranks,
        packed,
        cut,
        logits,
        target,
        index,
        width,
        chunk,
        sampling,
        pre_rolled,
        upstream=upstream,
    )
    (value,), gradient = dense_of(
        reference, logits, target, cu_seqlens, width, sampling, upstream=upstream
    )
    assert together.result.dtype == torch.float32
    torch.testing.assert_close(
        together.result.double(), value, atol=VALUE["atol"], rtol=VALUE["rtol"], equal_nan=True
    )
    close(together.gradient, cp * gradient, atol=cp * GRADIENT["atol"], rtol=GRADIENT["rtol"])
    return together


@pytest.mark.parametrize(("tp", "cp"), LAYOUTS)
@pytest.mark.parametrize("pre_rolled", [False, True])
def test_packed_sequence_logprobs_and_gradients_match_float64_on_tp_and_cp_ranks(
    ranks: Ranks, tp: int, cp: int, pre_rolled: bool
) -> None:
    check(ranks, LENGTHS, max(LENGTHS), tp=tp, cp=cp, pre_rolled=pre_rolled)


@pytest.mark.parametrize(
    ("lengths", "width"),
    [
        pytest.param((8, 16, 8), 40, id="wider than all: zeros at the end"),
        pytest.param((8, 16, 8), 5, id="narrower than all: cut"),
        pytest.param((8, 16, 8), 1, id="no column"),
        pytest.param((8, 0, 16, 0, 0), 16, id="empty sequences, the last ones too"),
        pytest.param((0, 8), 8, id="the first is empty"),
        pytest.param((0, 0), 8, id="all are empty"),
        pytest.param((), 8, id="no sequence"),
        pytest.param((32,), 32, id="one sequence"),
        pytest.param((4,) * 9, 4, id="as short as can be"),
    ],
)
@pytest.mark.parametrize("cp", [1, 2])
def test_packed_logprobs_handle_empty_sequences_and_any_output_width(
    ranks: Ranks, lengths: tuple[int, ...], width: int, cp: int
) -> None:
    check(ranks, lengths, width, cp=cp, tp=2)


@pytest.mark.parametrize("chunk", [3, 1000, None])
@pytest.mark.parametrize("sampling", [None, BOTH], ids=str)
def test_packed_logprobs_match_float64_for_any_chunk_size_and_sampling_filter(
    ranks: Ranks, chunk: int | None, sampling: TrainingSamplingParams | None
) -> None:
    check(ranks, LENGTHS, 24, tp=2, cp=2, chunk=chunk, sampling=sampling)


def test_packed_logprobs_allow_odd_sequence_lengths_with_one_cp_rank(ranks: Ranks) -> None:
    check(ranks, (7, 1, 5), 6, tp=2)
