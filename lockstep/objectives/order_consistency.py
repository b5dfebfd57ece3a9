"""A label-free test of whether a pairwise judge responds to more than the order of two answers.

Each pair is compared in both orders, and the judge is consistent if it names the same winner twice.
Under the null hypothesis it does not read the answers: it names the one shown first with some
probability p, independently each time. Then

    P(consistent) = 2·p·(1 − p)

which is ½ for a coin toss, and 0 for a judge that always names the first. p is unknown, but it
cancels given F, the wins of the first in the 2n battles of n comparisons, and the number C of
consistent comparisons has an exact distribution:

    P(C = c | n, F) = n! / (a!·c!·b!) · 2^c / C(2n, F),   a = (F − c)/2,   b = n − a − c

with a comparisons that the first won twice, and b that the second won twice. (It is the exact test
of genetics for an excess of heterozygotes.) If p differs between comparisons, a judge without skill
is consistent even less often. So P(C ≥ c | n, F) at or below `LEVEL` shows that the winners depend
on the answers. It does not show that they are right: a judge that always prefers the longer answer
is consistent.

The test may be repeated as comparisons come in: each time, a judge without skill passes with a
probability of at most `LEVEL`, so on average it passes at most that share of the times.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from operator import add

from lockstep.objectives.battles import BattleResults

LEVEL = 0.01
"""Maximum probability that a judge without skill passes."""


@dataclass(frozen=True)
class ComparisonCounts:
    """Counts of comparisons that were decided in both orders.

    Attributes:
        total: n.
        consistent: C, comparisons with the same winner in both orders.
        first_wins: F, battles won by the answer shown first.
    """

    total: int = 0
    consistent: int = 0
    first_wins: int = 0

    def __add__(self, other: ComparisonCounts) -> ComparisonCounts:
        return ComparisonCounts(*map(add, astuple(self), astuple(other)))

    @property
    def by_chance(self) -> float:
        """Expected consistent share of an unskilled judge with this `first_wins`; NaN if empty."""
        if not self.total:
            return math.nan
        first = self.first_wins / (2 * self.total)
        return 2 * first * (1 - first)

    @property
    def luck_probability(self) -> float:
        """P(C ≥ c | n, F): probability that an unskilled judge is this consistent; 1 if empty."""
        second_wins = 2 * self.total - self.first_wins
        draws = _log_factorial(2 * self.total) - sum(
            map(_log_factorial, (self.first_wins, second_wins))
        )
        probabilities: list[float] = []
        for count in range(self.consistent, min(self.first_wins, second_wins) + 1, 2):
            first_twice = (self.first_wins - count) // 2
            second_twice = self.total - first_twice - count
            ways = _log_factorial(self.total) - sum(
                map(_log_factorial, (first_twice, count, second_twice))
            )
            probabilities.append(math.exp(ways + count * math.log(2) - draws))
        return min(1.0, math.fsum(probabilities))

    @property
    def show_skill(self) -> bool:
        """True if an unskilled judge would be this consistent with probability at most `LEVEL`."""
        return self.luck_probability <= LEVEL


def count_comparisons(battles: Iterable[BattleResults]) -> ComparisonCounts:
    """Counts comparisons that were decided in both orders, over several sets of players."""
    total = 0
    consistent = 0
    first_wins = 0
    for own in battles:
        for (i, j), winner in own.items():
            back = own.get((j, i))
            if i < j and winner is not None and back is not None:
                total += 1
                consistent += winner != back
                first_wins += (winner == "A") + (back == "A")
    return ComparisonCounts(total, consistent, first_wins)


def _log_factorial(count: int) -> float:
    return math.lgamma(count + 1)
