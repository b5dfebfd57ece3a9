"""A poor meta-judge does no harm: while its comparisons show no skill, its pairs of judgements are left out."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from lockstep.metrics import Last, Metrics
from lockstep.objectives.order_consistency import Comparisons

_FILE = "skill.json"


class Skill:
    """The comparisons of an iteration so far, and what they show; part of a checkpoint.

    All comparisons of an iteration are those of one meta-judge, if the reference policy acts; the next iteration has
    another one, which must show skill of its own.

    Args:
        note: Shows a line that stays.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._iteration, self._seen = 0, Comparisons()
        self._told_to_be_poor = False

    def show(self, iteration: int, step: int, found: Comparisons) -> bool:
        """True if the comparisons of the iteration show skill, those of this step (from 0) among them."""
        if iteration != self._iteration:
            self._iteration, self._seen, self._told_to_be_poor = iteration, Comparisons(), False
        self._seen += found
        skilled = self._seen.show_skill
        if skilled == self._told_to_be_poor and self._seen.total:
            self._told_to_be_poor = not skilled
            self._note(_describe(self._seen, step, skilled))
        return skilled

    def metrics(self) -> Metrics:
        """Metrics of the iteration so far."""
        told = Metrics(luck=Last(self._seen.luck))
        return told + Metrics(consistent_by_chance=Last(self._seen.by_chance)) if self._seen.total else told

    def save(self, folder: Path) -> None:
        """Saves the counts; see `Learner.save`."""
        folder.mkdir(parents=True, exist_ok=True)
        state = {"iteration": self._iteration, "told_to_be_poor": self._told_to_be_poor, "seen": asdict(self._seen)}
        (folder / _FILE).write_text(json.dumps(state), encoding="utf-8")

    def poll_save(self, wait: bool) -> bool:
        return True

    def load(self, folder: Path) -> None:
        """Restores the counts; see `Learner.load`. A run that began without a meta-judge has none."""
        if folder.exists():
            state = json.loads((folder / _FILE).read_text(encoding="utf-8"))
            self._iteration, self._told_to_be_poor = state["iteration"], state["told_to_be_poor"]
            self._seen = Comparisons(**state["seen"])


def _describe(seen: Comparisons, step: int, skilled: bool) -> str:
    """Describes what the comparisons so far show, and what follows."""
    figures = (
        f"at step {step + 1} the meta-judge has named the same winner in both orders in {seen.consistent} of "
        f"{seen.total} comparisons of this iteration, where one that does not read them would in {seen.by_chance:.0%}"
    )
    if skilled:
        return f"{figures}; that shows skill, and from now on its pairs of judgements are learned from"
    return (
        f"{figures}; its pairs of judgements are left out until it shows skill: if it does not, train it to compare "
        "judgements first, or turn use_meta_judge off"
    )
