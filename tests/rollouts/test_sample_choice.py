"""What the sample log shows of a step: the telling responses, whole groups of them, and then the
first.
"""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.rollouts.samples import choose_rows

NONE = math.nan


def choose(
    scores: list[float], count: int, group: int = 1, cut: tuple[int, ...] = ()
) -> list[tuple[int, str]]:
    truncated = [row in cut for row in range(len(scores))]
    prompts = [f"t:{row // group}" for row in range(len(scores))]
    return list(choose_rows(scores, truncated, prompts, count).items())


def test_logged_samples_include_best_worst_truncated_and_unscored_responses() -> None:
    scores = [0.5, 0.5, 0.5, 0.25, 0.5, 1.0, NONE, 0.5, 1.0]
    assert choose(scores, 6, cut=(7, 8)) == [
        (0, "next in order"), (1, "next in order"), (3, "worst score"), (5, "best score"), (6, "no verdict"),
        (7, "cut off"),
    ]  # fmt: skip
    assert choose(scores, 2) == [(3, "worst score"), (5, "best score")]


def test_logged_groups_are_those_with_most_different_scores_or_truncation() -> None:
    scores = [0.0, 0.0, 1.0, 0.5, 0.0, 1.0, 1.0, 1.0]
    assert choose(scores, 4, group=2) == [
        (0, "next in order"), (1, "next in order"), (4, "most different scores"), (5, ("most "
                                                                                      "different "
                                                                                      "scores")),
    ]  # fmt: skip
    shown = choose(scores, 4, group=2, cut=(7,))
    assert [row for row, reason in shown if reason == "cut off"] == [6, 7]


@pytest.mark.parametrize("group", [1, 3, 4])
@given(
    scores=st.lists(st.sampled_from([NONE, 0.0, 0.5, 1.0]), max_size=6), count=st.integers(0, 30),
    cut=st.sets(st.integers(0, 23)),
)  # fmt: skip
def test_logged_rows_are_ordered_and_as_many_as_requested(
    group: int, scores: list[float], count: int, cut: set[int]
) -> None:
    rows = [row for row, _ in choose(scores * group, count, group, tuple(cut))]
    assert rows == sorted(set(rows))
    assert len(rows) == min(count, len(scores) * group)
