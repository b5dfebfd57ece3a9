"""Results of `benchmarks.ladder.beside_trl`, one line per run, and their table."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.ladder.beside_trl.cases import CASES, Case

RESULTS = Path(__file__).parents[1] / "results" / "beside_trl.jsonl"
SIDES = ("lockstep", "trl")


@dataclass(frozen=True)
class Curve:
    """The curve of one run.

    Attributes:
        case: The case's name.
        side: `lockstep` or `trl`.
        seed: The run's seed.
        settings: Digest of the case's settings, which are the same for both sides.
        steps: Steps at which the model was measured.
        values: What was measured there.
        cpu_s: CPU seconds from the end of the first step until there; 0 for step 0.
        program: Name and versions.
        machine: The machine and the day.
    """

    case: str
    side: str
    seed: int
    settings: str
    steps: tuple[int, ...]
    values: tuple[float, ...]
    cpu_s: tuple[float, ...]
    program: str
    machine: str

    def at(self, cpu_s: float) -> float:
        """The value after so many CPU seconds, between two measurements by a line."""
        after = bisect_right(self.cpu_s, cpu_s)
        if after == len(self.cpu_s):
            return self.values[-1]
        (low, high), (early, late) = self.values[after - 1 : after + 1], self.cpu_s[after - 1 : after + 1]
        return low + (high - low) * (cpu_s - early) / (late - early)


def read_curves() -> list[Curve]:
    """Reads all results."""
    if not RESULTS.exists():
        return []
    rows = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    return [Curve(**row | {name: tuple(row[name]) for name in ("steps", "values", "cpu_s")}) for row in rows]


def add_curve(curve: Curve) -> None:
    """Adds a result; an older one of the same case, side and seed goes."""
    mine = (curve.case, curve.side, curve.seed)
    kept = [one for one in read_curves() if (one.case, one.side, one.seed) != mine]
    order = {case.name: place for place, case in enumerate(CASES)}
    ordered = sorted([*kept, curve], key=lambda one: (order.get(one.case, len(order)), one.side, one.seed))
    RESULTS.write_text("".join(json.dumps(asdict(one)) + "\n" for one in ordered))


def table(cases: Sequence[Case]) -> str:
    """Both sides of each case: where they begin and end, at equal steps and at equal CPU seconds."""
    head = [
        "| case | measure | seeds | first | Lockstep, last step | TRL, last step | difference by seed | "
        "CPU s: Lockstep, TRL | ratio | at equal CPU s: Lockstep, TRL |",
        "|---|---|---:|---:|---|---|---|---:|---:|---|",
    ]
    curves = read_curves()
    rows = [_row(case, [one for one in curves if one.case == case.name]) for case in cases]
    notes = [f"* {case.name}: {case.note}." for case in cases if case.note]
    known = {case.name: case for case in cases}
    shown = [one for one in curves if one.case in known]
    stale = sum(known[one.case].digest(one.seed) != one.settings for one in shown)
    if stale:
        notes.append(f"* {stale} of {len(shown)} runs are of other settings than this tree's.")
    return "\n".join([*head, *rows, "", *notes])


def _row(case: Case, curves: Sequence[Curve]) -> str:
    ours, theirs = ({one.seed: one for one in curves if one.side == side} for side in SIDES)
    seeds = sorted(ours.keys() & theirs.keys())
    if not seeds:
        return f"| {case.name} | {case.what} | 0 | – | – | – | – | – | – | – |"
    pairs = [(ours[seed], theirs[seed]) for seed in seeds]
    ends = [[curve.values[-1] for curve in side] for side in zip(*pairs, strict=True)]
    gaps = [mine - other for mine, other in zip(*ends, strict=True)]
    seconds = [sum(curve.cpu_s[-1] for curve in side) / len(seeds) for side in zip(*pairs, strict=True)]
    equal = [[curve.at(min(one.cpu_s[-1] for one in pair)) for curve in pair] for pair in pairs]
    at_equal = [_spread(side) for side in zip(*equal, strict=True)]
    first = sum(one.values[0] for one, _ in pairs) / len(pairs)
    apart = "" if _overlap(*ends) else ", outside"
    clock = f"{seconds[0]:.1f}, {seconds[1]:.1f} | {seconds[1] / seconds[0]:.1f}×"
    return (
        f"| {case.name} | {case.what}, TRL {case.release} | {len(seeds)} | {first:.3f} | {_spread(ends[0])} | "
        f"{_spread(ends[1])} | {_spread(gaps, '+.2g')}{apart} | {clock} | {at_equal[0]}, {at_equal[1]} |"
    )


def _overlap(ours: Sequence[float], theirs: Sequence[float]) -> bool:
    """True if the ranges over seeds have a value in common."""
    return max(min(ours), min(theirs)) <= min(max(ours), max(theirs))


def _spread(values: Sequence[float], form: str = ".3f") -> str:
    """Mean and range over seeds."""
    return f"{sum(values) / len(values):{form}} [{min(values):{form}}, {max(values):{form}}]"
