"""Which row stands where: epochs, and nothing that depends on how it is asked for."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from lockstep.data.order import rows_at


@given(start=st.integers(0, 10**6), cuts=st.lists(st.integers(1, 9), min_size=1, max_size=6), shuffle=st.booleans())
def test_rows_do_not_depend_on_the_size_of_batches(start: int, cuts: list[int], shuffle: bool) -> None:
    taken: list[int] = []
    for count in cuts:
        taken += rows_at(start + len(taken), count, 10, 3, shuffle)
    assert taken == rows_at(start, sum(cuts), 10, 3, shuffle)


def test_every_row_comes_once_before_any_comes_again() -> None:
    rows = rows_at(0, 30, 10, seed=5, shuffle=True)
    epochs = [rows[:10], rows[10:20], rows[20:]]
    assert all(set(Counter(epoch)) == set(range(10)) for epoch in epochs)
    assert len(set(map(tuple, epochs))) == 3
    assert rows_at(8, 4, 10, seed=5, shuffle=False) == [8, 9, 0, 1]
