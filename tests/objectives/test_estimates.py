"""Estimates against enumeration of every subset in exact fractions, their properties, and the
coverage of intervals.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lockstep.objectives.estimates import majority_at_k, pass_at_k, share

RIGHT, SILENT = "right", None
counts = st.tuples(
    st.integers(0, 5), st.lists(st.integers(1, 4), max_size=3).map(tuple), st.integers(0, 2)
).filter(lambda drawn: 1 <= drawn[0] + sum(drawn[1]) + drawn[2] <= 9)


def responses(right: int, wrong: tuple[int, ...], silent: int) -> list[str | None]:
    """One name of an answer per response."""
    others = [f"wrong {i}" for i, size in enumerate(wrong) for _ in range(size)]
    return [RIGHT] * right + others + [SILENT] * silent


def won(votes: tuple[str | None, ...]) -> Fraction:
    """What one vote is worth to the right answer."""
    tally = Counter(vote for vote in votes if vote is not None)
    leaders = [answer for answer, count in tally.items() if count == max(tally.values())]
    return Fraction(1, len(leaders)) if RIGHT in leaders else Fraction(0)


@given(counts, st.data())
def test_pass_at_k_and_majority_at_k_equal_exact_enumeration_of_subsets(
    drawn: tuple[int, tuple[int, ...], int], data: st.DataObject
) -> None:
    right, wrong, silent = drawn
    every = responses(right, wrong, silent)
    k = data.draw(st.integers(1, len(every)))
    subsets = list(itertools.combinations(every, k))
    passed = Fraction(sum(RIGHT in subset for subset in subsets), len(subsets))
    majority = sum((won(subset) for subset in subsets), Fraction(0)) / len(subsets)
    assert pass_at_k(len(every), right, k) == float(passed)
    assert majority_at_k(right, wrong, silent, k) == float(majority)


def test_one_response_per_question_gives_wilsons_interval() -> None:
    """Newcombe 1998, table I: 81 of 263, and 15 of 148; 0 of 20; 1 of 29."""
    for passed, n, low, high in ((81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611),
                                 (1, 29, 0.0061, 0.1718)):  # fmt: skip
        found = share([1.0] * passed + [0.0] * (n - passed))
        assert (found.value, found.questions) == (passed / n, n)
        assert (found.low, found.high) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize(("rate", "questions"), [(0.7, 50), (2 / 3, 22), (0.1, 3)])
def test_questions_with_equal_rates_give_wilson_interval_of_question_count(
    rate: float, questions: int
) -> None:
    """Their variance is rounding, or nothing: Wilson's interval of as many responses as
    questions.
    """
    found, z2 = share([rate] * questions), 1.959963984540054**2
    center = (rate + z2 / (2 * questions)) / (1 + z2 / questions)
    half = (
        math.sqrt(z2)
        / (1 + z2 / questions)
        * math.sqrt(rate * (1 - rate) / questions + z2 / (4 * questions**2))
    )
    assert (found.low, found.high) == pytest.approx((center - half, center + half), abs=1e-9)


@pytest.mark.parametrize(
    ("strong", "weak", "questions", "n", "least"),
    [
        (0.5, 0.5, 50, 4, 0.93),
        (0.5, 0.5, 200, 16, 0.93),
        (0.2, 3.0, 50, 4, 0.90),
        (0.05, 5.0, 50, 1, 0.90),
        (3.0, 0.2, 50, 1, 0.93),
    ],
)
def test_confidence_intervals_cover_true_rate_in_about_95_percent_of_samples(
    strong: float, weak: float, questions: int, n: int, least: float
) -> None:
    """Questions of every difficulty, p ~ Beta: the truth lies in 95 % of the intervals, about."""
    torch.manual_seed(0)
    runs, truth = 1000, strong / (strong + weak)
    difficulty = torch.distributions.Beta(strong, weak).sample((runs, questions))
    passed = torch.distributions.Binomial(n, difficulty).sample() / n
    found = [share(row) for row in passed.tolist()]
    covered = sum(estimate.low <= truth <= estimate.high for estimate in found) / runs
    assert least <= covered <= 0.985
