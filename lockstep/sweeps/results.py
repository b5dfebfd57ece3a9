"""The table of a sweep: final values of each group of runs with intervals, and of each run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lockstep.report.summary import PAGE
from lockstep.report.sweeps import FINAL, LEVEL, RunResult, group_results, read_sweep
from lockstep.report.terminal import summary_table


def read_results(folder: Path) -> list[RunResult]:
    """The runs of a sweep, in its order."""
    return [RunResult.read(run) for run in read_sweep(folder)]


def list_runs(results: Sequence[RunResult]) -> list[dict[str, Any]]:
    """A row for each run: name of its folder, values, state and final metrics."""
    return [{"run": of.run.folder.name, **of.run.values, "state": of.state, **of.final} for of in results]


def list_spreads(results: Sequence[RunResult]) -> list[dict[str, Any]]:
    """A row for each group and final metric: `group`, `metric`, `count`, `mean`, `low`, `high`, of finished runs."""
    return [
        {"group": group.name, "metric": metric, **asdict(spread)}
        for group in group_results(results)
        for metric, spread in group.final.items()
    ]


def summarize(folder: Path) -> str:
    """The final values of each group, and where the report is."""
    groups = group_results(read_results(folder))
    metrics = [metric for metric in FINAL if any(metric in group.final for group in groups)]
    table = [["", "finished", *metrics]]
    for group in groups:
        cells = [group.final[metric].text if metric in group.final else "–" for metric in metrics]
        table.append([group.name, f"{group.finished} of {len(group.numbers)}", *cells])
    about = f"last values: means over finished runs, with {LEVEL:.0%} Student-t intervals over seeds"
    return f"{summary_table(table)}\n{about}\n{folder}, report: {folder / PAGE}"
