"""The table of a sweep: final values of each group of runs with intervals, and of each run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lockstep.report.log import read_metrics
from lockstep.report.run_state import Word, read_state
from lockstep.report.summary import PAGE
from lockstep.report.sweeps import FINAL, LEVEL, Row, SweepRun, group_runs, last_value, read_sweep, spread_finals
from lockstep.report.terminal import summary_table


@dataclass(frozen=True)
class RunResult:
    """A run of a sweep as its folder has it now.

    Attributes:
        run: The run.
        state: How far it is.
        rows: Its lines of metrics.
    """

    run: SweepRun
    state: Word
    rows: Sequence[Row]

    @property
    def row(self) -> dict[str, Any]:
        """Folder, values and final metrics in one row."""
        final = {metric: last_value(self.rows, metric) for metric in FINAL}
        known = {metric: value for metric, value in final.items() if value is not None}
        return {"run": self.run.folder.name, **self.run.values, "state": self.state, **known}


def read_results(folder: Path) -> list[RunResult]:
    """The runs of a sweep, in its order."""
    runs = read_sweep(folder)
    return [RunResult(run, read_state(run.folder).word, read_metrics(run.folder)) for run in runs]


def spread_groups(results: Sequence[RunResult]) -> list[dict[str, Any]]:
    """A row for each group and final metric: `group`, `metric`, `count`, `mean`, `low`, `high`, of finished runs."""
    rows: list[dict[str, Any]] = []
    for group, members in group_runs([result.run for result in results]).items():
        finished = [results[number].rows for number in members if results[number].state == "finished"]
        rows += [{"group": group, "metric": name, **asdict(of)} for name, of in spread_finals(finished).items()]
    return rows


def summarize(folder: Path) -> str:
    """The final values of each group, and where the report is."""
    results = read_results(folder)
    groups = group_runs([result.run for result in results])
    finished = [result.state == "finished" for result in results]
    spreads = {
        name: spread_finals([results[number].rows for number in members if finished[number]])
        for name, members in groups.items()
    }
    metrics = [metric for metric in FINAL if any(metric in spread for spread in spreads.values())]
    table = [["", "finished", *metrics]]
    for name, members in groups.items():
        cells = [spreads[name][metric].text if metric in spreads[name] else "–" for metric in metrics]
        table.append([name, f"{sum(finished[number] for number in members)} of {len(members)}", *cells])
    about = f"last values: means over finished runs, with {LEVEL:.0%} Student-t intervals over seeds"
    return f"{summary_table(table)}\n{about}\n{folder}, report: {folder / PAGE}"
