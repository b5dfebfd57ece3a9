from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lockstep.learners.packing import GroupFamily, deal_to_ranks, estimate_cost, pack_bins


def separate(lengths: list[int]) -> list[GroupFamily]:
    """Groups that share nothing."""
    return [GroupFamily((group,), (size,), (size,), (size,)) for group, size in enumerate(lengths)]


@given(st.lists(st.integers(1, 100), max_size=60), st.integers(1, 150))
def test_every_sequence_is_packed_once_within_the_budget(lengths: list[int], budget: int) -> None:
    bins = pack_bins(lengths, budget)
    assert sorted(index for rows in bins for index in rows) == list(range(len(lengths)))
    for rows in bins:
        assert sum(lengths[index] for index in rows) <= budget or len(rows) == 1


@given(st.lists(st.integers(1, 50), min_size=1, max_size=60), st.integers(50, 150))
def test_packing_opens_new_bin_only_if_no_earlier_bin_fits(lengths: list[int], budget: int) -> None:
    bins = pack_bins(lengths, budget)
    for later in range(len(bins)):
        opener = lengths[bins[later][0]]
        assert all(
            sum(lengths[index] for index in earlier) + opener > budget for earlier in bins[:later]
        )


def test_sequence_over_token_budget_is_packed_alone() -> None:
    assert pack_bins([2, 20, 3], 10) == [[1], [2, 0]]


@given(st.lists(st.integers(1, 100), max_size=60), st.integers(1, 150), st.integers(1, 5))
def test_every_sequence_goes_to_one_rank_and_ranks_run_equally_many_passes(
    lengths: list[int], budget: int, ranks: int
) -> None:
    shares = deal_to_ranks(separate(lengths), budget, ranks)
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


def test_rank_costs_are_balanced_per_pass_and_in_total() -> None:
    lengths = np.random.default_rng(0).lognormal(6.0, 0.8, 512).astype(int).clip(1, 8192).tolist()
    shares = deal_to_ranks(separate(lengths), 16384, 4)
    costs = np.array(
        [
            [estimate_cost(separate([lengths[index] for index in rows])) for rows in passes]
            for passes in shares
        ]
    )
    assert costs.sum(1).max() < 1.03 * costs.sum(1).mean()
    assert costs.max(0).sum() < 1.1 * costs.mean(0).sum(), "what the slowest takes, pass by pass"
