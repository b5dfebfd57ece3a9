from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lockstep.learners.packing import deal_to_ranks, estimate_cost, pack_bins


@given(st.lists(st.integers(1, 100), max_size=60), st.integers(1, 150))
def test_every_sequence_is_packed_once_within_the_budget(lengths: list[int], budget: int) -> None:
    bins = pack_bins(lengths, budget)
    assert sorted(index for rows in bins for index in rows) == list(range(len(lengths)))
    for rows in bins:
        assert sum(lengths[index] for index in rows) <= budget or len(rows) == 1


@given(st.lists(st.integers(1, 50), min_size=1, max_size=60), st.integers(50, 150))
def test_no_bin_is_opened_while_another_has_room(lengths: list[int], budget: int) -> None:
    bins = pack_bins(lengths, budget)
    for later in range(len(bins)):
        opener = lengths[bins[later][0]]
        assert all(
            sum(lengths[index] for index in earlier) + opener > budget for earlier in bins[:later]
        )


def test_a_sequence_over_budget_travels_alone() -> None:
    assert pack_bins([2, 20, 3], 10) == [[1], [2, 0]]


@given(st.lists(st.integers(1, 100), max_size=60), st.integers(1, 150), st.integers(1, 5))
def test_every_sequence_is_dealt_once_and_all_make_the_same_number_of_passes(
    lengths: list[int], budget: int, ranks: int
) -> None:
    shares = deal_to_ranks(lengths, budget, ranks)
    assert sorted(index for passes in shares for rows in passes for index in rows) == list(
        range(len(lengths))
    )
    assert len(shares) == ranks
    assert len({len(passes) for passes in shares}) == 1
    for rows in (rows for passes in shares for rows in passes):
        assert sum(lengths[index] for index in rows) <= budget or len(rows) == 1
    if len(lengths) >= ranks * (len(pack_bins(lengths, budget)) // ranks + 1):
        assert all(rows for passes in shares for rows in passes), (
            "nobody idles while others have two"
        )


def test_ranks_get_like_costs_in_each_pass_and_together() -> None:
    lengths = np.random.default_rng(0).lognormal(6.0, 0.8, 512).astype(int).clip(1, 8192).tolist()
    shares = deal_to_ranks(lengths, 16384, 4)
    costs = np.array(
        [
            [estimate_cost([lengths[index] for index in rows]) for rows in passes]
            for passes in shares
        ]
    )
    assert costs.sum(1).max() < 1.03 * costs.sum(1).mean()
    assert costs.max(0).sum() < 1.1 * costs.mean(0).sum(), "what the slowest takes, pass by pass"
