"""Which row stands where: proportions, epochs, and nothing that depends on how it is asked for."""

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from lockstep.data.order import count_drawn, mix_rows_at

PARTS = st.lists(st.tuples(st.integers(1, 9), st.floats(0.01, 100)), min_size=1, max_size=5)
"""Sizes and weights."""


def split(parts: list[tuple[int, float]]) -> tuple[list[int], list[float]]:
    return [size for size, _ in parts], [weight for _, weight in parts]


@given(parts=PARTS, position=st.integers(0, 10**15))
def test_mixture_draws_from_each_part_in_proportion_to_its_weight(
    parts: list, position: int
) -> None:
    _, weights = split(parts)
    counts = count_drawn(position, tuple(weights))
    assert sum(counts) == position
    shares = [position * weight / sum(weights) for weight in weights]
    assert all(
        abs(count - share) < len(parts) + 1e-9 * share
        for count, share in zip(counts, shares, strict=True)
    )


@given(parts=PARTS, seed=st.integers(0, 99))
def test_mixture_draws_every_row_of_part_once_per_epoch(parts: list, seed: int) -> None:
    sizes, weights = split(parts)
    rows = mix_rows_at(0, 60, sizes, weights, seed, shuffle=True)
    ends = list(accumulate(sizes))
    for size, end in zip(sizes, ends, strict=True):
        own = [row for row in rows if end - size <= row < end]
        epochs = [own[start : start + size] for start in range(0, len(own), size)]
        assert all(len(set(epoch)) == len(epoch) for epoch in epochs)
    assert all(0 <= row < ends[-1] for row in rows)


@given(
    parts=PARTS,
    start=st.integers(0, 10**6),
    cuts=st.lists(st.integers(1, 9), min_size=1, max_size=6),
)
def test_a_mixture_does_not_depend_on_the_size_of_batches(
    parts: list, start: int, cuts: list[int]
) -> None:
    sizes, weights = split(parts)
    ends = list(accumulate(cuts, initial=start))
    pieces = [
        mix_rows_at(at, count, sizes, weights, 3, True)
        for at, count in zip(ends, cuts, strict=False)
    ]
    assert [row for piece in pieces for row in piece] == mix_rows_at(
        start, sum(cuts), sizes, weights, 3, True
    )
