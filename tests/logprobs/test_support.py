from __future__ import annotations

import math
from typing import Any, TypedDict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ranks import Collectives, HostWaits, Layout, Ranks
from torch import Tensor

from lockstep_logprobs.shard import Shard
from lockstep_logprobs.support import support_floor

INF = math.inf
FEW, MANY = 40, 300
"""Vocabularies that are sorted and searched."""


class Sampling(TypedDict, total=False):
    """As in `support_floor`."""

    top_k: int | None
    top_p: float | None
    temperature: float
    min_p: float


def masses(row: list[float], k: int, temperature: float, floor: float) -> tuple[float, float]:
    """The probability of what lies above the threshold, and from it on, after top-k; by loops over
    the row.
    """
    last = sorted(row, reverse=True)[: k or None][-1]
    weights = {i: math.exp((z - max(row)) / temperature) for i, z in enumerate(row) if z >= last}
    total = sum(weights.values())
    above = sum(weight for i, weight in weights.items() if row[i] > floor)
    return above / total, (
        above + sum(weight for i, weight in weights.items() if row[i] == floor)
    ) / total


@st.composite
def rows(draw: st.DrawFn) -> list[float]:
    """Some coarse, so that logits are equal; some with impossible tokens."""
    size = draw(st.sampled_from([1, 3, FEW, MANY]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    row = draw(st.sampled_from([0.1, 1.0, 5.0, 30.0])) * torch.randn(size, generator=generator)
    if draw(st.booleans()):
        row = row.round()
    impossible = torch.rand(size, generator=generator) < draw(st.sampled_from([0.0, 0.5]))
    impossible[draw(st.integers(0, size - 1))] = False
    return row.masked_fill(impossible, -INF).tolist()


@given(rows(), st.integers(1, 500))
def test_top_k_threshold_is_kth_largest_logit(row: list[float], k: int) -> None:
    assert support_floor(torch.tensor([row]), top_k=k).item() == sorted(row, reverse=True)[:k][-1]


@given(
    rows(),
    st.sampled_from([0, 0, 1, 4, 50, 400]),
    st.one_of(st.sampled_from([0.0, 1e-6, 0.5, 0.999999]), st.floats(0.0, 1.0, exclude_max=True)),
    st.sampled_from([0.3, 1.0, 1.7]),
)
def test_top_p_keeps_tokens_up_to_the_one_that_reaches_p(
    row: list[float], k: int, p: float, temperature: float
) -> None:
    floor = support_floor(torch.tensor([row]), top_k=k, top_p=p, temperature=temperature).item()
    assert floor in row
    above, with_it = masses(row, k, temperature, floor)
    assert above < p + 1e-5 or floor == max(row)
    assert with_it > p - 1e-5


@given(rows(), st.floats(0.0, 1.0, exclude_min=True), st.sampled_from([0.3, 1.0, 1.7]))
def test_min_p_filter_keeps_tokens_above_min_p_times_top_probability(
    row: list[float], min_p: float, temperature: float
) -> None:
    floor = support_floor(torch.tensor([row]), min_p=min_p, temperature=temperature).item()
    for z in row:
        share = math.exp((z - max(row)) / temperature)
        assert (z >= floor) == (share >= min_p) or abs(share / min_p - 1) < 1e-4


def test_top_k_and_top_p_apply_after_min_p() -> None:
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.06, 0.04]]).log()
    for sampling, kept in (
        (Sampling(min_p=0.4), 3),
        (Sampling(min_p=0.4, top_p=0.76), 2),  # 0.7 of 0.9 reaches it
        (Sampling(top_p=0.76), 3),
        (Sampling(min_p=0.4, top_k=4), 3),
        (Sampling(min_p=0.4, top_k=2), 2),
        (Sampling(min_p=0.4, top_k=4, top_p=0.76), 2),
        (Sampling(min_p=1.0), 1),
    ):
        assert int((logits >= support_floor(logits, **sampling)[:, None]).sum()) == kept


@pytest.mark.parametrize("columns", [FEW, MANY])
def test_top_p_keeps_tokens_tied_with_threshold_logit(columns: int) -> None:
    flat = torch.zeros(1, columns)
    assert support_floor(flat, top_p=0.5).item() == 0.0
    flat[0, 1] = 8.0
    assert support_floor(flat, top_p=0.5).item() == 8.0


def of_shard(layout: Layout, whole: Tensor, cuts: list[int], sampling: Sampling) -> dict[str, Any]:
    start, end = cuts[layout.rank], cuts[layout.rank + 1]
    with Collectives() as collectives, HostWaits() as waits:
        floor = support_floor(whole[:, start:end], Shard(start, layout.tp_group), **sampling)
    return {"floor": floor, "counts": sum(collectives.counts.values()), "waits": waits.found}


def of_some_kinds() -> Tensor:
    """Rows that are plain, coarse, flat, nearly on one token, and half impossible."""
    logits = 3 * torch.randn(5, MANY, generator=torch.Generator().manual_seed(1))
    logits[1] = logits[1].round()
    logits[2] = 0.0
    logits[3, 17] = 40.0
    logits[4, ::2] = -INF
    return logits


SAMPLINGS: dict[str, tuple[Sampling, int]] = {
    "k": ({"top_k": 7}, 1),
    "k-above-a-shard": ({"top_k": 150}, 1),
    "k-and-p": ({"top_k": 50, "top_p": 0.7, "temperature": 0.8}, 1),
    "all-and-p": ({"top_k": 1000, "top_p": 0.7}, 1),
    "p": ({"top_p": 0.7, "temperature": 0.8}, 5),
    "small-p": ({"top_p": 1e-4}, 5),
    "large-p": ({"top_p": 0.9999}, 5),
    "min-p": ({"min_p": 0.3, "temperature": 0.8}, 1),
    "min-p-and-k": ({"min_p": 0.05, "top_k": 7}, 2),
    "none": ({}, 0),
}


@pytest.mark.parametrize("name", SAMPLINGS)
def test_sharded_support_threshold_is_bit_identical_to_one_process(ranks: Ranks, name: str) -> None:
    sampling, exchanges = SAMPLINGS[name]
    expected = support_floor(of_some_kinds(), **sampling)
    for cuts in ([0, 150, MANY], [0, 3, 120, 120, MANY]):
        for found in ranks.run(of_shard, of_some_kinds(), cuts, sampling, tp=len(cuts) - 1):
            assert torch.equal(found["floor"], expected)
            assert found["counts"] == exchanges
            assert found["waits"] == []
