"""The table of a sweep: final values of each group of runs with intervals, and of each run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lockstep.report.alarms import find_alarms
from lockstep.report.summary import PAGE
from lockstep.report.sweeps import FINAL, LEVEL, RunResult, group_results, read_sweep
from lockstep.report.terminal import summary_table

_MOST_ALARMS = 10


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
    """The final values of each group, the alarms of runs, and where the report is."""
    results = read_results(folder)
    groups = group_results(results)
    metrics = [metric for metric in FINAL if any(metric in group.final for group in groups)]
    table = [["", "finished", *metrics]]
    for group in groups:
        cells = [group.final[metric].text if metric in group.final else "–" for metric in metrics]
        table.append([group.name, f"{group.finished} of {len(group.numbers)}", *cells])
    about = f"last values: means over finished runs, with {LEVEL:.0%} Student-t intervals over seeds"
    alarms = [f"ALARM, {of.run.folder.name}, {alarm.sentence}" for of in results for alarm in find_alarms(of.rows)]
    more = len(alarms) - _MOST_ALARMS
    shown = [*alarms[:_MOST_ALARMS], f"and {more} more alarm{'s' if more > 1 else ''}"][: len(alarms)]
    return "\n".join([summary_table(table), about, *shown, f"{folder}, report: {folder / PAGE}"])
