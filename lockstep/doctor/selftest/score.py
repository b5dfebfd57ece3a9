"""What the doctor said about each case, against what was wrong with it; and what single numbers say about the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from lockstep.doctor.examine import Diagnosis

Outcome = Literal["right", "wrong", "half", "unexplained", "missed", "quiet", "false alarm"]
"""All causes named and no other · a cause named that is none · one of two named · a disagreement without a name ·
no disagreement seen · healthy, and found so · healthy, and something said."""

BARE_LIMIT = 1.05


@dataclass(frozen=True)
class Row:
    """One case.

    Attributes:
        name: Of the case, unique.
        expected: For each fault its right names.
        named: By the doctor, the largest share first, with the side it blames.
        disagrees: Whether it saw a disagreement.
        mult_prob_error: Mean of e^|Δ|.
        prob_difference: Mean of |p − p'|, as verl reports it.
        seconds: The examination took.
    """

    name: str
    expected: tuple[tuple[str, ...], ...]
    named: tuple[tuple[str, str | None], ...]
    disagrees: bool
    mult_prob_error: float
    prob_difference: float
    seconds: float

    @property
    def outcome(self) -> Outcome:
        """How the doctor did."""
        names = {name for name, _ in self.named}
        if not self.expected:
            return "false alarm" if names or (self.disagrees and not self.named) else "quiet"
        if names - {name for right in self.expected for name in right}:
            return "wrong"
        hits = sum(bool(names & set(right)) for right in self.expected)
        if hits == len(self.expected):
            return "right"
        return "half" if hits else "unexplained" if self.disagrees else "missed"


def row(name: str, expected: tuple[tuple[str, ...], ...], diagnosis: Diagnosis, seconds: float) -> Row:
    """The row of a diagnosis."""
    case = diagnosis.case
    train_M, infer_M = case.train_N[case.compared], case.infer_N[case.compared]
    return Row(
        name,
        expected,
        tuple((named.cause, named.side) for named in diagnosis.causes),
        diagnosis.disagrees,
        float((train_M - infer_M).abs().exp().mean()),
        float((train_M.exp() - infer_M.exp()).abs().mean()),
        seconds,
    )


def markdown(rows: Sequence[Row]) -> str:
    """A table of all cases, and below it the score."""
    lines = [
        "| Case | Wrong | Named | Outcome | mean e^&#124;Δ&#124; | mean &#124;p − p'&#124; | s |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in rows:
        wrong = " + ".join(right[0] for right in one.expected) or "nothing"
        named = ", ".join(name if side is None else f"{name} ({side})" for name, side in one.named) or "–"
        figures = f"{one.mult_prob_error:.4g} | {one.prob_difference:.2g} | {one.seconds:.1f}"
        lines.append(f"| {one.name} | {wrong} | {named} | {one.outcome} | {figures} |")
    return "\n".join([*lines, "", *(f"- {said}" for said in score(rows))])


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
