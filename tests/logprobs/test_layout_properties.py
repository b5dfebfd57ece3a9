"""Packed rows against loops over their sequences."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import given
from hypothesis import strategies as st

from lockstep_logprobs.packed import Packing


@dataclass(frozen=True)
class Row:
    """Sequences of a packed row, as lists."""

    lengths: list[int]
    tail: int
    size: int

    @property
    def starts(self) -> list[int]:
        return [sum(self.lengths[:b]) for b in range(len(self.lengths) + 1)]

    @property
    def pieces(self) -> list[range]:
        """The positions of each sequence, and of what lies behind the last."""
        lengths, starts = [*self.lengths, self.tail], self.starts
        return [range(start, start + length) for start, length in zip(starts, lengths, strict=True)]

    @property
    def packing(self) -> Packing:
        return Packing(torch.tensor(self.starts, dtype=torch.int32), sum(self.lengths) + self.tail, self.size)

    def held(self, rank: int) -> list[int]:
        found: list[int] = []
        for piece in self.pieces:
            chunk = len(piece) // (2 * self.size)
            for c in (rank, 2 * self.size - 1 - rank):
                found += piece[c * chunk : (c + 1) * chunk]
        return found


@st.composite
def rows(draw: st.DrawFn, sizes: tuple[int, ...] = (2, 3, 4)) -> Row:
    size = draw(st.sampled_from(sizes))
    chunks = draw(st.lists(st.integers(0, 4), min_size=1, max_size=6))
    return Row([2 * size * n for n in chunks], 2 * size * draw(st.integers(0, 2)), size)


@st.composite
def whole_rows(draw: st.DrawFn) -> Row:
    """On one rank, where any length will do."""
    return Row(draw(st.lists(st.integers(0, 9), min_size=1, max_size=6)), draw(st.integers(0, 3)), 1)


@given(rows())
def test_each_rank_holds_an_early_and_a_late_chunk_of_every_sequence(row: Row) -> None:
    for rank in range(row.size):
        assert row.packing.positions(rank).tolist() == row.held(rank)


@given(rows())
def test_gathered_rows_are_put_in_order(row: Row) -> None:
    ranks = [position for rank in range(row.size) for position in row.held(rank)]
    assert [ranks[index] for index in row.packing.gather_index().tolist()] == list(range(row.packing.tokens))


@given(st.one_of(rows(), whole_rows()))
def test_a_token_is_followed_by_the_next_of_its_sequence(row: Row) -> None:
    expected = [position for piece in row.pieces for position in [*piece[1:], *piece[:1]]]
    assert row.packing.following().tolist() == expected


@given(st.one_of(rows(), whole_rows()), st.integers(0, 12))
def test_sequences_are_laid_into_rows_without_their_last_tokens(row: Row, width: int) -> None:
    nowhere, cells = row.packing.tokens, row.packing.rows(width)
    assert cells.shape == (len(row.lengths), width)
    for found, piece in zip(cells.tolist(), row.pieces, strict=False):
        expected = list(piece[:-1])[:width]
        assert found == expected + [nowhere] * (width - len(expected))
