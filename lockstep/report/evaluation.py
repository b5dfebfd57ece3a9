"""The results of an evaluation as a table: figures in rows, settings in columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lockstep.report.terminal import summary_table

RESULTS, SAMPLES = "results.json", "samples.jsonl"


def results_table(folder: Path) -> str:
    """Reads the results of an evaluation. Returns text for a terminal."""
    results = json.loads((folder / RESULTS).read_text())
    settings: dict[str, dict[str, Any]] = results["settings"]
    names = dict.fromkeys(name for setting in settings.values() for name in setting["figures"])
    rows = [("", *(_heading(name, setting) for name, setting in settings.items()))]
    for name in names:
        rows.append((name, *(_figure(setting["figures"].get(name), results) for setting in settings.values())))
    for name, label, form in (
        ("truncated", "truncated", "{:.1%}"),
        ("response_length", "mean length", "{:.1f} tokens"),
        ("no_verdict", "no verdict", "{:.0f}"),
    ):
        rows.append((label, *(form.format(setting["responses"][name]) for setting in settings.values())))
    counts = f"{results['questions']} questions, {results['skipped_rows']} rows skipped; in brackets 95 % intervals"
    return f"{results['model']} on {results['data']}: {counts}\n\n{summary_table(rows)}"


def _heading(name: str, setting: dict[str, Any]) -> str:
    if name == "greedy":
        return name
    sampling = setting["sampling"]
    shape = "".join(f", {cut} {sampling[cut]:g}" for cut, off in (("top_k", 0), ("top_p", 1.0)) if sampling[cut] != off)
    return f"{setting['num_samples']} samples at temperature {sampling['temperature']:g}{shape}"


def _figure(figure: dict[str, Any] | None, results: dict[str, Any]) -> str:
    """A figure with its interval, and how many questions it stands on where that is not all of them."""
    if figure is None or figure["value"] is None:
        return "–"
    ends = "" if figure["low"] is None else f" [{figure['low']:.3f}, {figure['high']:.3f}]"
    some = "" if figure["questions"] == results["questions"] else f" of {figure['questions']} questions"
    return f"{figure['value']:.3f}{ends}{some}"
