"""Agreement with people, against brute force in float64, and by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise, permutations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lockstep.objectives.ranking import (
    decide_pairs,
    exact_match,
    kendall_tau,
    spearman,
    tie_share,
    top_is_best,
)

RANKED = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=2, max_size=7)


def columns(rows: Sequence[tuple[int, int]]) -> tuple[list[float], list[float]]:
    return [float(rank) for rank, _ in rows], [score / 2 for _, score in rows]


def matrix(values: Sequence[float]) -> torch.Tensor:
    """sign(v_i − v_j), float64."""
    column = torch.tensor(values, dtype=torch.float64)
    return torch.sign(column[:, None] - column[None, :])


@given(RANKED)
def test_pair_agreement_tie_share_and_exact_match_equal_brute_force(
    rows: list[tuple[int, int]],
) -> None:
    ranks, scores = columns(rows)
    people, judge = -matrix(ranks), matrix(scores)
    apart = people != 0
    if not apart.any():
        assert [measure(ranks, scores) for measure in (tie_share, exact_match)] == [None] * 2
        return
    agreed, tied = (people * judge)[apart], (judge == 0)[apart]
    rights = [right for _, _, right in decide_pairs(ranks, scores)]
    assert sum(rights) / len(rights) == pytest.approx(float(((agreed + 1) / 2).mean()))
    assert tie_share(ranks, scores) == pytest.approx(float(tied.double().mean()))
    assert exact_match(ranks, scores) == float((agreed == 1).all())
    assert len(list(decide_pairs(ranks, scores))) == int(apart.sum()) // 2


@given(RANKED)
def test_kendall_is_tau_b(rows: list[tuple[int, int]]) -> None:
    """(C − D) / √((n₀ − n₁)(n₀ − n₂)), over all ordered pairs."""
    ranks, scores = columns(rows)
    people, judge = -matrix(ranks), matrix(scores)
    norm = math.sqrt(float(people.abs().sum()) * float(judge.abs().sum()))
    expected = float((people * judge).sum()) / norm if norm else 0.0
    assert kendall_tau(ranks, scores) == (pytest.approx(expected) if people.any() else None)


@given(RANKED)
def test_spearman_equals_pearson_of_average_ranks(rows: list[tuple[int, int]]) -> None:
    ranks, scores = columns(rows)
    places = torch.stack([mean_places([-rank for rank in ranks]), mean_places(scores)])
    deviations = places.std(dim=1)
    expected = float(torch.corrcoef(places)[0, 1]) if deviations.all() else 0.0
    assert spearman(ranks, scores) == (
        pytest.approx(expected, abs=1e-12) if deviations[0] else None
    )


def mean_places(values: Sequence[float]) -> torch.Tensor:
    """Place of each value, those of equal ones averaged over all orders of them, by trying all
    sorted orders.
    """
    orders = [
        order for order in permutations(range(len(values))) if is_sorted([values[i] for i in order])
    ]
    total = torch.zeros(len(values), dtype=torch.float64)
    for order in orders:
        total[list(order)] += torch.arange(len(values), dtype=torch.float64)
    return total / len(orders)


def is_sorted(values: Sequence[float]) -> bool:
    return all(a <= b for a, b in pairwise(values))


@given(RANKED)
def test_top_is_best_equals_brute_force_share(rows: list[tuple[int, int]]) -> None:
    ranks, scores = columns(rows)
    there = [rank == min(ranks) for rank, score in rows if score == 4]
    expected = sum(there) / len(there) if there and len(set(ranks)) > 1 else None
    assert top_is_best(ranks, scores, 2.0) == expected
