"""The test of a judge's skill by its order consistency: its chance level, its exact distribution,
and who passes.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable

import pytest

from lockstep.objectives.battles import BattleResults, BattleWinner
from lockstep.objectives.order_consistency import LEVEL, ComparisonCounts, count_comparisons

Judge = Callable[[random.Random, bool], BattleWinner]
"""Names the winner of a battle; told whether the better one is shown first."""


def always_first(chance: random.Random, better_first: bool) -> BattleWinner:
    return "A"


def coin(chance: random.Random, better_first: bool) -> BattleWinner:
    return "A" if chance.random() < 0.5 else "B"


def mostly_first(chance: random.Random, better_first: bool) -> BattleWinner:
    return "A" if chance.random() < 0.9 else "B"


def judge_all(judge: Judge, comparisons: int, seed: int) -> ComparisonCounts:
    chance = random.Random(seed)
    # the better one is number 0
    battles: list[BattleResults] = [
        {(0, 1): judge(chance, True), (1, 0): judge(chance, False)} for _ in range(comparisons)
    ]
    return count_comparisons(battles)


def share_passing(judge: Judge, comparisons: int) -> float:
    return sum(judge_all(judge, comparisons, seed).show_skill for seed in range(400)) / 400


@pytest.mark.parametrize("comparisons", [1, 3, 12, 60])
@pytest.mark.parametrize("judge", [always_first, coin, mostly_first])
def test_judge_without_skill_passes_no_more_often_than_significance_level(
    judge: Judge, comparisons: int
) -> None:
    assert share_passing(judge, comparisons) <= LEVEL + 3 * math.sqrt(LEVEL * (1 - LEVEL) / 400)


@pytest.mark.parametrize(("total", "first_wins"), [(3, 2), (4, 4), (5, 3), (6, 6), (6, 9)])
def test_luck_probability_equals_exact_enumeration(total: int, first_wins: int) -> None:
    """Beside a count of all ways in which the first can win that often."""
    ways = [way for way in itertools.product((0, 1), repeat=2 * total) if sum(way) == first_wins]
    consistent = [sum(way[2 * k] != way[2 * k + 1] for k in range(total)) for way in ways]
    for count in set(consistent):
        exact = sum(one >= count for one in consistent) / len(ways)
        assert ComparisonCounts(total, count, first_wins).luck_probability == pytest.approx(
            exact, rel=1e-9
        )


def test_comparison_undecided_in_either_order_is_not_counted() -> None:
    battles: BattleResults = {
        (0, 1): "A", (1, 0): "B",
        (0, 2): "A", (2, 0): "A",
        (1, 2): "B", (2, 1): None,
        (0, 3): "A",
    }  # fmt: skip
    assert count_comparisons([battles]) == ComparisonCounts(2, 1, 3)
    assert count_comparisons([battles, battles]) == ComparisonCounts(2, 1, 3) + ComparisonCounts(
        2, 1, 3
    )
