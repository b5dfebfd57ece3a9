from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import ragged

from lockstep.core import align
from lockstep.core.batch import Batch, concat_batches
from lockstep.core.types import SamplingParams

LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=12)


def assert_equal(left: Batch, right: Batch) -> None:
    assert torch.equal(left.tokens, right.tokens)
    assert torch.equal(left.lengths, right.lengths)
    assert left.token.keys() == right.token.keys()
    assert left.sample.keys() == right.sample.keys()
    assert all(torch.equal(left[name], right[name]) for name in [*left.token, *left.sample])
    assert left.sampling == right.sampling


def test_batch_gives_row_and_position_of_each_token() -> None:
    batch = Batch(torch.arange(6), torch.tensor([2, 3, 1]))
    assert batch.row.tolist() == [0, 0, 1, 1, 1, 2]
    assert batch.position.tolist() == [0, 1, 0, 1, 2, 0]
    assert batch.starts.tolist() == [0, 2, 5]
    assert batch.per_sample(torch.ones(6)).tolist() == [2.0, 3.0, 1.0]


def test_one_value_per_sequence_for_a_token_column_is_rejected_with_the_cure() -> None:
    batch = Batch(torch.arange(6), torch.tensor([2, 3, 1]))
    advantage = torch.tensor([1.0, 2.0, 3.0])
    message = (
        r"'advantage' has one value for each of 3 sequences, .* such as advantage\[batch.row\]"
    )
    with pytest.raises(ValueError, match=message):
        batch.with_columns({"advantage": advantage})
    batch.with_columns({"advantage": advantage[batch.row]})


def test_target_token_is_aligned_with_state_of_previous_token() -> None:
    batch = Batch(torch.arange(6), torch.tensor([2, 3, 1]))
    own = align.target_indices(batch)
    assert own.tolist() == [1, 3, 4]
    assert align.state_before(own).tolist() == [0, 2, 3]
    assert align.state_after(batch).tolist() == [1, 4, 5]


@given(LENGTHS, st.randoms())
def test_batch_select_copies_complete_sequences_in_given_order(lengths: list[int], random) -> None:
    batch = ragged(lengths)
    rows = [random.randrange(len(lengths)) for _ in range(random.randrange(2 * len(lengths) + 1))]
    picked = batch.select(rows)
    assert len(picked) == len(rows)
    for name in (None, *batch.token):
        pieces = batch.sequences(name)
        for piece, row in zip(picked.sequences(name), rows, strict=False):
            assert torch.equal(piece, pieces[row])
    assert picked["truncated"].tolist() == [batch["truncated"].tolist()[row] for row in rows]


@given(LENGTHS, st.integers(1, 5))
def test_concat_of_split_batch_equals_original_batch(lengths: list[int], rows: int) -> None:
    batch = ragged(lengths, sampling=SamplingParams(max_tokens=3))
    pieces = batch.split(rows)
    assert all(len(piece) <= rows for piece in pieces)
    assert_equal(concat_batches(pieces), batch)


def test_concat_rejects_batches_with_different_columns_or_options() -> None:
    batch = ragged((3, 1))
    asking = replace(batch, top_k=4, entropy=False, values="final")
    sampled = ragged((2,), sampling=SamplingParams(max_tokens=1))
    for other in (Batch(batch.tokens, batch.lengths), sampled, asking):
        with pytest.raises(ValueError, match="cannot be joined"):
            concat_batches([batch, other])
    whole = concat_batches([asking, asking.keep_places()])
    assert (whole.top_k, whole.entropy, whole.values, whole.places) == (4, False, "final", None)
