"""The ladder's figures as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.ladder.results import Result, read_results
from benchmarks.ladder.rung import Claim, Rung
from benchmarks.ladder.runs import key_of
from benchmarks.ladder.statistics import Band, band, difference

MARK = (
    "<!-- What follows is written by `python -m benchmarks.ladder --show --page "
    "docs/ladder.md`. -->"
)


def table(rung: Rung) -> str:
    """One rung's figures, and how many of its runs are of other recipes than this tree's."""
    results = read_results(rung.name)
    if rung.missing:
        return f"{figures(rung)}\nNot compared with this tree's recipes: {rung.missing}.\n"
    stale = sum(_is_stale(rung, one) for one in results)
    return (
        f"{figures(rung)}\n{stale} of {len(results)} runs are of other recipes than this tree's.\n"
    )


def figures(rung: Rung) -> str:
    """One rung: its arms with bands, what they take to the threshold, and its claims with
    verdicts.
    """
    results = read_results(rung.name)
    of_arms = {name: _of_arm(results, name) for name in rung.arms}
    seeds = max(map(len, of_arms.values()))
    known = f" (greatest expected value {rung.optimum:.3f})" if rung.optimum is not None else ""
    cost = "" if rung.threshold is None else f" samples to {rung.threshold:g} |"
    lines = [
        f"### {rung.name}",
        "",
        f"{rung.question} Measured: {rung.metric}{known}.",
        "",
        f"| arm | end of {seeds} seeds, IQM [95 %] |{cost}",
        f"|---|---|{'---:|' if cost else ''}",
        *(_row(rung, name, own, seeds) for name, own in of_arms.items()),
        "",
        *(f"* {sentence}" for sentence in (judge(claim, results) for claim in rung.claims)),
    ]
    return "\n".join(lines) + "\n"


def write_page(page: Path, rungs: Sequence[Rung]) -> None:
    """Replaces all of a page that is below its mark by the figures of the rungs."""
    prose = page.read_text().partition(MARK)[0]
    page.write_text("\n".join([prose + MARK + "\n", *map(figures, rungs)]))


def judge(claim: Claim, results: Sequence[Result]) -> str:
    """A claim with its verdict: it holds if the band of the difference over common seeds is above
    0.
    """
    verdict = compare(claim, results)
    said = f"{claim.better} above {claim.worse}, {claim.because}"
    if verdict is None:
        return f"not measured: {said}"
    what = "at the end" if claim.of == "end" else "on average of the curve"
    return f"{'holds' if verdict.low > 0 else 'not shown'}: {said}; {what} by {verdict}"


def compare(claim: Claim, results: Sequence[Result]) -> Band | None:
    """The band of a claim's difference; None where fewer than two seeds have both arms."""
    better, worse = (
        {one.key.seed: _measure(claim, one) for one in _of_arm(results, name)}
        for name in (claim.better, claim.worse)
    )
    seeds = sorted(better.keys() & worse.keys())
    return (
        difference([better[seed] for seed in seeds], [worse[seed] for seed in seeds])
        if len(seeds) > 1
        else None
    )


def _is_stale(rung: Rung, result: Result) -> bool:
    arm = rung.arms.get(result.key.arm)
    return (
        arm is None
        or key_of(arm.load(result.key.seed), result.key.arm, result.key.seed) != result.key
    )


def _of_arm(results: Sequence[Result], name: str) -> list[Result]:
    return [one for one in results if one.key.arm == name]


def _measure(claim: Claim, result: Result) -> float:
    return result.end if claim.of == "end" else result.mean


def _row(rung: Rung, name: str, results: Sequence[Result], seeds: int) -> str:
    if not results:
        return f"| {name} | not measured |"
    few = "" if len(results) == seeds else f" ({len(results)} seeds)"
    row = f"| {name} | {band([one.end for one in results])}{few} |"
    return (
        row
        if rung.threshold is None
        else f"{row} {_samples_to_threshold(rung.threshold, results)} |"
    )


def _samples_to_threshold(threshold: float, results: Sequence[Result]) -> str:
    """Samples until the threshold, the mean over seeds that reach it; and how many do, if not
    all.
    """
    found = [(one, one.first_at(threshold)) for one in results]
    reached = [one.steps[index] * one.samples_per_step for one, index in found if index is not None]
    if not reached:
        return "never"
    few = f" ({len(reached)} of {len(results)})" if len(reached) < len(results) else ""
    return f"{sum(reached) / len(reached):,.0f}{few}"
