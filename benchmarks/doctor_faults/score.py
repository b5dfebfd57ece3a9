"""Places that the doctor found for each case, against what was wrong with it; and what single numbers say."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from benchmarks.doctor_faults.places import PLACES

Outcome = Literal["right", "wrong", "half", "unexplained", "missed", "quiet", "false alarm"]
"""A place for each fault and no other · a place where no fault is · one of two found · a disagreement without a place ·
no disagreement seen · healthy, and found so · healthy, and something said."""

BARE_LIMIT = 1.05


@dataclass(frozen=True)
class Row:
    """One case.

    Attributes:
        name: Of the case, unique.
        group: Split and mechanism of its fault, or what else it is.
        expected: For each fault its right names.
        found: Stages at which segments end that were located, `COLUMN` among them.
        disagrees: Whether it saw a disagreement.
        mult_prob_error: Mean of e^|Δ|.
        prob_difference: Mean of |p − p'|, as verl reports it.
        seconds: CPU time of the case.
    """

    name: str
    group: tuple[str, str]
    expected: tuple[tuple[str, ...], ...]
    found: tuple[str, ...]
    disagrees: bool
    mult_prob_error: float
    prob_difference: float
    seconds: float

    @property
    def outcome(self) -> Outcome:
        """How the doctor did."""
        found = {re.sub(r"\.\d+$", "", stage) for stage in self.found}  # of several outputs of one module
        if not self.expected:
            return "false alarm" if found or self.disagrees else "quiet"
        places = [frozenset().union(*(PLACES[cause] for cause in right)) for right in self.expected]
        if found - frozenset().union(*places):
            return "wrong"
        hits = sum(bool(found & right) for right in places)
        if hits == len(places):
            return "right"
        return "half" if hits else "unexplained" if self.disagrees else "missed"


def markdown(rows: Sequence[Row]) -> str:
    """A table of all cases, and below it the score."""
    lines = [
        "| Case | Wrong | Found | Outcome | mean e^&#124;Δ&#124; | mean &#124;p − p'&#124; | CPU s |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in rows:
        wrong = " + ".join(right[0] for right in one.expected) or "nothing"
        found = ", ".join(one.found) or "–"
        figures = f"{one.mult_prob_error:.4g} | {one.prob_difference:.2g} | {one.seconds:.1f}"
        lines.append(f"| {one.name} | {wrong} | {found} | {one.outcome} | {figures} |")
    return "\n".join([*lines, "", *by_mechanism(rows), "", *(f"- {said}" for said in score(rows))])


def by_mechanism(rows: Sequence[Row]) -> list[str]:
    """A table of outcomes by split and mechanism, and of CPU seconds a case."""
    lines = [
        "| Split | Mechanism | Cases | Right | Wrong | Half | No place | Missed | CPU s, median and worst |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    ill = [one for one in rows if one.expected]
    for group in sorted({one.group for one in ill}):
        own = [one for one in ill if one.group == group]
        counts = Counter(one.outcome for one in own)
        told = " | ".join(str(counts[kind]) for kind in ("right", "wrong", "half", "unexplained", "missed"))
        seconds = [one.seconds for one in own]
        lines.append(f"| {' | '.join(group)} | {len(own)} | {told} | {median(seconds):.1f}, {max(seconds):.1f} |")
    return lines


def score(rows: Sequence[Row]) -> Iterable[str]:
    """The score, in lines."""
    ill, well = [one for one in rows if one.expected], [one for one in rows if not one.expected]
    if ill:
        counts = Counter(one.outcome for one in ill)
        kinds: tuple[Outcome, ...] = ("right", "half", "wrong", "unexplained", "missed")
        said = ", ".join(f"{counts[kind]} {kind}" for kind in kinds)
        yield f"{len(ill)} cases with faults: {said}"
        yield f"mean e^|Δ| > {BARE_LIMIT} sees {sum(one.mult_prob_error > BARE_LIMIT for one in ill)} of them"
    if well:
        alarms = [one.name for one in well if one.outcome == "false alarm"]
        yield f"{len(well)} healthy cases: {len(alarms)} false alarms{': ' if alarms else ''}{', '.join(alarms)}"
        yield f"mean e^|Δ| > {BARE_LIMIT} raises {sum(one.mult_prob_error > BARE_LIMIT for one in well)}"
    if ill and well:
        limit = max(one.prob_difference for one in well)
        seen = sum(one.prob_difference > limit for one in ill)
        yield f"mean |p − p'| > {limit:.2g}, the largest of a healthy case, sees {seen} of those with faults"
