"""Tables of the results of evaluations, and of judges.

Rows are figures; columns are settings or ways of judging.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from lockstep.core.types import SamplingParams
from lockstep.report.terminal import summary_table
from lockstep.system.records import read_record

RESULTS = "results.json"
SAMPLES = "samples.jsonl"
JUDGMENTS = "judgments.jsonl"
CURE = f"remove {RESULTS} and rerun the command to rebuild it from the saved answers"


@dataclass(frozen=True)
class FigureRead:
    """A figure with its interval and number of questions; all None if missing."""

    value: float | None
    low: float | None
    high: float | None
    questions: int


_NOTHING = FigureRead(None, None, None, 0)


@dataclass(frozen=True)
class _EvaluatedSetting:
    num_samples: int
    sampling: SamplingParams
    figures: Mapping[str, FigureRead]
    responses: Mapping[str, float]
    judging: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True)
class _EvaluationResults:
    model: str
    data: str
    questions: int
    skipped_rows: int
    settings: Mapping[str, _EvaluatedSetting]


def results_table(folder: Path) -> str:
    """Reads the results of an evaluation. Returns text for a terminal."""
    results = read_record(folder / RESULTS, _EvaluationResults, CURE)
    settings = results.settings
    names = chain.from_iterable(setting.figures for setting in settings.values())
    judges = chain.from_iterable(setting.judging for setting in settings.values())
    rows = [("", *(_render_heading(name, setting) for name, setting in settings.items()))]
    for name in dict.fromkeys(names):
        figures = [setting.figures.get(name, _NOTHING) for setting in settings.values()]
        cells = (figure_text(figure, results.questions, "questions") for figure in figures)
        rows.append((name, *cells))
    for name, label, form in (
        ("truncated", "truncated", "{:.1%}"),
        ("response_length", "mean length", "{:.1f} tokens"),
        ("no_verdict", "no verdict", "{:.0f}"),
    ):
        rows.append(
            (label, *(form.format(setting.responses[name]) for setting in settings.values()))
        )
    for name in dict.fromkeys(judges):
        if name.endswith("/no_verdict"):
            shares: list[str] = []
            for setting in settings.values():
                share = setting.judging.get(name)
                shares.append("–" if share is None else f"{share:.1%}")
            rows.append((name, *shares))
    counts = (
        f"{results.questions} questions, {results.skipped_rows} rows skipped; brackets: 95 % "
        "intervals"
    )
    return f"{results.model} on {results.data}: {counts}\n\n{summary_table(rows)}"


def _render_heading(name: str, setting: _EvaluatedSetting) -> str:
    sampling = setting.sampling
    shape = [f"{name} {value:g}" for name, value in sampling.filters_and_penalties.items()]
    shape += [f"stop {json.dumps(sampling.stop, ensure_ascii=False)}"] if sampling.stop else []
    sampled = f"{setting.num_samples} samples at temperature {sampling.temperature:g}"
    return ", ".join([name if name == "greedy" else sampled, *shape])


def figure_text(figure: FigureRead, total: int, what: str) -> str:
    """A figure with its interval, and its number of questions if some are missing."""
    if figure.value is None:
        return "–"
    if figure.low is None or figure.high is None:
        ends = ""
    else:
        ends = f" [{figure.low:.3f}, {figure.high:.3f}]"
    if figure.questions == total:
        some = ""
    else:
        some = f" of {figure.questions} {what}"
    return f"{figure.value:.3f}{ends}{some}"


_LABELS = {
    "pairwise_accuracy": "pairwise accuracy",
    "ties": "ties",
    "exact_match": "exact-match ranking",
    "top_is_best": "top score is best",
    "spearman": "Spearman ρ",
    "kendall_tau": "Kendall τ",
    "first_preferred": "first shown preferred",
    "consistent": "same in both orders",
    "consistent_accuracy": "accuracy if consistent",
    "longer_preferred": "longer preferred",
    "longer_preferred_by_people": "longer preferred by humans",
    "length_bias": "length bias",
}


@dataclass(frozen=True)
class JudgingWay:
    """Agreement of one way of judging."""

    figures: Mapping[str, FigureRead]
    judgments: Mapping[str, float]


@dataclass(frozen=True)
class JudgingResults:
    """Agreement of a judge with people, as stored in a file."""

    judge: str
    data: str
    prompts: int
    responses: int
    skipped_rows: int
    ways: Mapping[str, JudgingWay]


def read_judging(file: Path) -> JudgingResults:
    """Reads the agreement of a judge; raises InputError if the file is invalid."""
    return read_record(file, JudgingResults, CURE)


def judge_table(folder: Path) -> str:
    """Reads the results of an evaluation of a judge. Returns text for a terminal."""
    results = read_judging(folder / RESULTS)
    ways = results.ways
    rows = [("", *ways)]
    for name, label in _LABELS.items():
        figures = [way.figures.get(name, _NOTHING) for way in ways.values()]
        if any(figure.value is not None for figure in figures):
            rows.append(
                (label, *(figure_text(figure, results.prompts, "prompts") for figure in figures))
            )
    rows.append(("no verdict", *(_no_verdict(way.judgments) for way in ways.values())))
    rows.append(
        ("shown truncated", *(f"{way.judgments['shortened']:.0f}" for way in ways.values()))
    )
    counts = (
        f"{results.prompts} prompts, {results.responses} responses, {results.skipped_rows} "
        "rows skipped"
    )
    head = (
        f"{results.judge} on {results.data}: {counts}; brackets: 95 % "
        f"intervals\n\n{summary_table(rows)}"
    )
    return f"{head}{''.join(map(_describe_warning, ways.items()))}"


def _no_verdict(counts: Mapping[str, float]) -> str:
    """Describes how many judgments have no verdict, by cause."""
    named = {"judgments", "no_verdict", "shortened"}
    causes: list[str] = []
    for cause, count in counts.items():
        if cause not in named:
            causes.append(f"{count:.0f} {cause.replace('_', ' ')}")
    text = f"{counts['no_verdict']:.0f} of {counts['judgments']:.0f}"
    if causes:
        text += f" ({', '.join(causes)})"
    return text


def _describe_warning(way: tuple[str, JudgingWay]) -> str:
    """Warns if most judgments have no verdict, so that no figure is meaningful."""
    name = way[0]
    counts = way[1].judgments
    if counts["no_verdict"] * 2 <= counts["judgments"]:
        return ""
    if counts["no_verdict"] == counts["judgments"]:
        most = "no judgment has a verdict"
    else:
        most = "most judgments have no verdict"
    return (
        f"\n\n{name}: {most}, so these figures do not measure the judge; check the replies in "
        f"{JUDGMENTS}, the template and the token limits"
    )
