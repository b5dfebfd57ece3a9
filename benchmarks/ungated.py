"""`lockstep train` that learns from every meta-judge's pairs of judgements, also of one that shows no skill.

    python -m benchmarks.ungated train RECIPE key=value …

An experiment, and no option of the product: it shows what the test of skill is good for
(`lockstep/objectives/order_consistency.py`). All else is as it is, metrics and random numbers too.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from lockstep import cli
from lockstep.algorithms.self_rewarding.skill import Skill
from lockstep.objectives.order_consistency import Comparisons

_show = Skill.show


def show_anything(self: Skill, iteration: int, step: int, found: Comparisons) -> bool:
    """True, whatever the comparisons show."""
    _show(self, iteration, step, found)
    return True


Skill.show = show_anything


def main(arguments: Sequence[str]) -> int:
    if len(arguments) < 2 or arguments[0] != "train":
        sys.exit("usage: python -m benchmarks.ungated train RECIPE [key=value …]")
    return cli.main(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
