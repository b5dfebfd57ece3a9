"""`lockstep train` that learns from every meta-judge's pairs of judgments, also of one that shows
no skill.

    python -m benchmarks.ladder.ungated train RECIPE key=value …

An experiment of the rung `meta`, and no option of the product: it shows the use of the test of
skill (`lockstep/objectives/order_consistency.py`). All else stays the same, metrics and random
numbers too.
"""

from __future__ import annotations

import sys

from benchmarks.altered import name_runs_apart
from lockstep import cli
from lockstep.algorithms.self_rewarding.meta import MetaJudgeSkill
from lockstep.objectives.order_consistency import ComparisonCounts

_show = MetaJudgeSkill.add_comparisons


def show_anything(self: MetaJudgeSkill, iteration: int, found: ComparisonCounts) -> bool:
    """Counts the comparisons, and returns True also where they show no skill."""
    _show(self, iteration, found)
    return True


MetaJudgeSkill.add_comparisons = show_anything
name_runs_apart("benchmarks.ladder.ungated", ("self_rewarding",))

if __name__ == "__main__":
    sys.exit(cli.main(sys.argv[1:]))
