from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lockstep.learners.packing import pack


@given(st.lists(st.integers(1, 100), max_size=60), st.integers(1, 150))
def test_every_sequence_is_packed_once_within_the_budget(lengths: list[int], budget: int) -> None:
    bins = pack(lengths, budget)
    assert sorted(index for rows in bins for index in rows) == list(range(len(lengths)))
    for rows in bins:
        assert sum(lengths[index] for index in rows) <= budget or len(rows) == 1


@given(st.lists(st.integers(1, 50), min_size=1, max_size=60), st.integers(50, 150))
def test_no_bin_is_opened_while_another_has_room(lengths: list[int], budget: int) -> None:
    bins = pack(lengths, budget)
    for later in range(len(bins)):
        opener = lengths[bins[later][0]]
        assert all(sum(lengths[index] for index in earlier) + opener > budget for earlier in bins[:later])


def test_longest_first_each_into_the_first_that_has_room() -> None:
    assert pack([3, 7, 2, 5, 3], 10) == [[1, 0], [3, 4, 2]]


def test_a_sequence_over_budget_travels_alone() -> None:
    assert pack([2, 20, 3], 10) == [[1], [2, 0]]


def test_nothing_packs_into_nothing() -> None:
    assert pack([], 10) == []
