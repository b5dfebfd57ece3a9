"""Agreement of a judge with people as a table: figures in rows, ways of judging in columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lockstep.records import read_record
from lockstep.report.evaluation import CURE, RESULTS, FigureRead, figure_text
from lockstep.report.terminal import summary_table

JUDGEMENTS = "judgements.jsonl"

_LABELS = {
    "pairwise_accuracy": "pairwise accuracy",
    "ties": "ties",
    "exact_match": "exact-match ranking",
    "top_is_best": "top score is best",
    "spearman": "Spearman ρ",
    "kendall_tau": "Kendall τ",
    "first_preferred": "first shown preferred",
    "consistent": "same in both orders",
    "consistent_accuracy": "accuracy of these",
    "longer_preferred": "longer preferred",
    "longer_preferred_by_people": "longer preferred by people",
    "length_bias": "length bias",
}
_NOTHING = FigureRead(None, None, None, 0)


@dataclass(frozen=True)
class JudgingWay:
    """Agreement of one way of judging."""

    figures: Mapping[str, FigureRead]
    judgements: Mapping[str, float]


@dataclass(frozen=True)
class JudgingResults:
    """Agreement of a judge with people, as a file has it."""

    judge: str
    data: str
    prompts: int
    responses: int
    skipped_rows: int
    ways: Mapping[str, JudgingWay]

    @property
    def sentence(self) -> str:
        """The agreement of its scores with people, in words."""
        own = self.ways["scores"]
        accuracy = figure_text(own.figures.get("pairwise_accuracy", _NOTHING), self.prompts, "prompts")
        return (
            f"it prefers the response that people rank higher in {accuracy} of pairs, over {self.prompts} prompts; "
            f"no verdict: {_no_verdict(own.judgements)}"
        )


def read_judging(file: Path) -> JudgingResults:
    """Reads the agreement of a judge; raises InputError where the file holds something else."""
    return read_record(file, JudgingResults, CURE)


def judge_table(folder: Path) -> str:
    """Reads the results of an evaluation of a judge. Returns text for a terminal."""
    results = read_judging(folder / RESULTS)
    ways = results.ways
    rows = [("", *ways)]
    for name, label in _LABELS.items():
        figures = [way.figures.get(name, _NOTHING) for way in ways.values()]
        if any(figure.value is not None for figure in figures):
            rows.append((label, *(figure_text(figure, results.prompts, "prompts") for figure in figures)))
    rows.append(("no verdict", *(_no_verdict(way.judgements) for way in ways.values())))
    rows.append(("shown in part", *(f"{way.judgements['shortened']:.0f}" for way in ways.values())))
    counts = f"{results.prompts} prompts, {results.responses} responses, {results.skipped_rows} rows skipped"
    head = f"{results.judge} on {results.data}: {counts}; in brackets 95 % intervals\n\n{summary_table(rows)}"
    return f"{head}{''.join(map(_warning, ways.items()))}"


def _no_verdict(counts: Mapping[str, float]) -> str:
    """Describes how many judgements have no verdict, and by what cause."""
    named = {"judgements", "no_verdict", "shortened"}
    causes = ", ".join(
        f"{count:.0f} {cause.replace('_', ' ')}" for cause, count in counts.items() if cause not in named
    )
    return f"{counts['no_verdict']:.0f} of {counts['judgements']:.0f}" + (f" ({causes})" if causes else "")


def _warning(way: tuple[str, JudgingWay]) -> str:
    """Warns where most judgements have no verdict, so that no figure says anything."""
    name, counts = way[0], way[1].judgements
    if counts["no_verdict"] * 2 <= counts["judgements"]:
        return ""
    most = "none of them has a verdict" if counts["no_verdict"] == counts["judgements"] else "most have no verdict"
    return (
        f"\n\n{name}: {most}, so the figures say nothing about this judge; look at the replies in {JUDGEMENTS}, at the "
        "template and at the limits on tokens"
    )
