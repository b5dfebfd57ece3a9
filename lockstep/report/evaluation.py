"""The results of an evaluation as a table: figures in rows, settings in columns."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lockstep.records import read_record
from lockstep.report.terminal import summary_table
from lockstep.types import SamplingParams

RESULTS, SAMPLES = "results.json", "samples.jsonl"


CURE = f"remove {RESULTS}, and the same command makes it anew of what was answered"


@dataclass(frozen=True)
class FigureRead:
    """A figure with its interval, and the number of questions that it stands on; all None where there is none."""

    value: float | None
    low: float | None
    high: float | None
    questions: int


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
    names = dict.fromkeys(name for setting in settings.values() for name in setting.figures)
    rows = [("", *(_heading(name, setting) for name, setting in settings.items()))]
    for name in names:
        rows.append((name, *(_figure(setting.figures.get(name), results) for setting in settings.values())))
    for name, label, form in (
        ("truncated", "truncated", "{:.1%}"),
        ("response_length", "mean length", "{:.1f} tokens"),
        ("no_verdict", "no verdict", "{:.0f}"),
    ):
        rows.append((label, *(form.format(setting.responses[name]) for setting in settings.values())))
    judges = dict.fromkeys(name for setting in settings.values() for name in setting.judging)
    for name in (name for name in judges if name.endswith("/no_verdict")):
        rows.append((name, *(_share(setting.judging.get(name)) for setting in settings.values())))
    counts = f"{results.questions} questions, {results.skipped_rows} rows skipped; in brackets 95 % intervals"
    return f"{results.model} on {results.data}: {counts}\n\n{summary_table(rows)}"


def _heading(name: str, setting: _EvaluatedSetting) -> str:
    sampling = setting.sampling
    shape = [f"{name} {value:g}" for name, value in sampling.filters_and_penalties.items()]
    shape += [f"stop {json.dumps(sampling.stop, ensure_ascii=False)}"] if sampling.stop else []
    sampled = f"{setting.num_samples} samples at temperature {sampling.temperature:g}"
    return ", ".join([name if name == "greedy" else sampled, *shape])


def _share(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"


def _figure(figure: FigureRead | None, results: _EvaluationResults) -> str:
    return "–" if figure is None else figure_text(figure, results.questions, "questions")


def figure_text(figure: FigureRead, all_of_them: int, what: str) -> str:
    """A figure with its interval, and how many questions it stands on where that is not all of them."""
    if figure.value is None:
        return "–"
    ends = "" if figure.low is None or figure.high is None else f" [{figure.low:.3f}, {figure.high:.3f}]"
    some = "" if figure.questions == all_of_them else f" of {figure.questions} {what}"
    return f"{figure.value:.3f}{ends}{some}"
