"""Sweeps as their folder tells them: runs with their values, grouped over seeds, with means and their intervals."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal
from urllib.parse import quote

from lockstep.core import exit_codes
from lockstep.report.alarms import find_alarms
from lockstep.report.held_out import HELD_OUT
from lockstep.report.log import read_metrics
from lockstep.report.run_state import Word, read_state
from lockstep.report.summary import PAGE, judge
from lockstep.report.terminal import summary_table
from lockstep.system.records import is_file, read_record

SWEEP = "sweep.json"
"""File of a sweep's folder: its runs."""

FINAL = (*HELD_OUT, "train/reward", "train/kl", "train/loss", "agreement/token_mult_prob_error")
"""Metrics whose last values a sweep compares."""

SEED = "seed"
"""The option over which runs are repeated: runs that differ in it alone are a group."""

State = Literal[Word, "failed"]
"""The state of a run; `failed` is one that is finished, but broke a promise or learned from nothing."""

LEVEL = 0.95
"""Confidence of an interval."""

_MOST_ALARMS = 10

Row = Mapping[str, float]


@dataclass(frozen=True)
class SweepRun:
    """A run of a sweep.

    Attributes:
        folder: Its folder.
        values: The values that are its own, by option.
    """

    folder: Path
    values: Mapping[str, Any]

    @property
    def group(self) -> str:
        """Name of the group of runs that differ in the seed alone."""
        return " ".join(f"{key}={value}" for key, value in self.values.items() if key != SEED) or "all"

    @cached_property
    def rows(self) -> Sequence[Row]:
        """Its lines of metrics; none before it has begun."""
        return read_metrics(self.folder)

    @cached_property
    def state(self) -> State:
        """The state of its folder; `failed` where it broke a promise or learned from nothing."""
        state = read_state(self.folder).word
        return "failed" if state == "finished" and judge(self.folder) != exit_codes.OK else state

    @cached_property
    def final(self) -> Mapping[str, float]:
        """The last value of each metric of `FINAL` that it logs; it may be NaN or infinite."""
        known = {metric: next((row[metric] for row in reversed(self.rows) if metric in row), None) for metric in FINAL}
        return {metric: value for metric, value in known.items() if value is not None}


@dataclass(frozen=True)
class Spread:
    """The mean of a figure over runs.

    Attributes:
        count: Number of runs.
        mean: Their mean.
        low: Lower end of the Student-t interval of the mean, at `LEVEL`; NaN of a single run.
        high: Upper end.
    """

    count: int
    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of at least one value."""
        mean = fmean(values)
        if len(values) < 2:
            return cls(1, mean, math.nan, math.nan)
        half = student((1 - LEVEL) / 2, len(values) - 1) * stdev(values) / math.sqrt(len(values))
        return cls(len(values), mean, mean - half, mean + half)

    @property
    def text(self) -> str:
        """The mean, its interval where there is one, and the number of runs."""
        ends = "" if math.isnan(self.low) else f" [{self.low:.4g}, {self.high:.4g}]"
        return f"{self.mean:.4g}{ends}, n={self.count}"


def is_sweep(folder: Path) -> bool:
    """True for the folder of a sweep."""
    return folder.is_dir() and is_file(folder / SWEEP)


@dataclass(frozen=True)
class NotedSweep:
    """The file of a sweep: threads of each run, and the values of each, by its name."""

    threads: int
    runs: dict[str, dict[str, Any]]

    @classmethod
    def of(cls, folder: Path) -> NotedSweep:
        """Reads the file; raises InputError if it holds something else."""
        return read_record(folder / SWEEP, cls, "restore the file, or choose another --name")


def read_sweep(folder: Path) -> list[SweepRun]:
    """The runs of a sweep, in its order, begun or not."""
    return [SweepRun(folder / name, values) for name, values in NotedSweep.of(folder).runs.items()]


@dataclass(frozen=True)
class Group:
    """Runs that differ in the seed alone.

    Attributes:
        name: Their other values.
        numbers: Numbers of its runs, in the sweep's order.
        finished: How many are finished, and have not failed.
        final: The spread of their last values by metric; a value that is no finite number is left out, as n says.
    """

    name: str
    numbers: Sequence[int]
    finished: int
    final: Mapping[str, Spread]


def group_runs(runs: Sequence[SweepRun]) -> list[Group]:
    """The groups of a sweep's runs."""
    groups: dict[str, list[int]] = {}
    for number, run in enumerate(runs):
        groups.setdefault(run.group, []).append(number)
    return [_group(name, numbers, runs) for name, numbers in groups.items()]


def _group(name: str, numbers: Sequence[int], runs: Sequence[SweepRun]) -> Group:
    finished = [runs[number].final for number in numbers if runs[number].state == "finished"]
    values = {metric: [final[metric] for final in finished if metric in final] for metric in FINAL}
    finite = {metric: [value for value in found if math.isfinite(value)] for metric, found in values.items()}
    return Group(name, numbers, len(finished), {metric: Spread.of(of) for metric, of in finite.items() if of})


def list_runs(runs: Sequence[SweepRun]) -> list[dict[str, Any]]:
    """A row for each run: name of its folder, values, state and final metrics."""
    return [{"run": run.folder.name, **run.values, "state": run.state, **run.final} for run in runs]


def list_spreads(runs: Sequence[SweepRun]) -> list[dict[str, Any]]:
    """A row for each group and final metric: `group`, `metric`, `count`, `mean`, `low`, `high`, of finished runs."""
    return [
        {"group": group.name, "metric": metric, **asdict(spread)}
        for group in group_runs(runs)
        for metric, spread in group.final.items()
    ]


def summarize_sweep(folder: Path) -> str:
    """The final values of each group, the alarms of runs, and where the report is."""
    runs = read_sweep(folder)
    groups = group_runs(runs)
    metrics = [metric for metric in FINAL if any(metric in group.final for group in groups)]
    table = [["", "finished", *metrics]]
    for group in groups:
        cells = [group.final[metric].text if metric in group.final else "–" for metric in metrics]
        table.append([group.name, f"{group.finished} of {len(group.numbers)}", *cells])
    about = f"last values: means over finished runs, with {LEVEL:.0%} Student-t intervals over seeds"
    alarms = [f"ALARM, {run.folder.name}, {alarm.sentence}" for run in runs for alarm in find_alarms(run.rows)]
    if len(alarms) > _MOST_ALARMS:
        alarms[_MOST_ALARMS:] = [f"and more alarms, {len(alarms)} in all"]
    return "\n".join([summary_table(table), about, *alarms, f"{folder}, report: {folder / PAGE}"])


def draw_band(runs: Sequence[Sequence[Row]], metric: str) -> dict[str, Any] | None:
    """A metric over the runs of a group: mean and interval at each step that all of those which log it have reached.

    Args:
        runs: Their lines of metrics.
        metric: Its name.

    Returns:
        Columns `step`, `mean`, `low` and `high`, and `n`, the number of runs; None where fewer than two log it.
    """
    curves = [{int(row["step"]): row[metric] for row in rows if metric in row} for rows in runs]
    curves = [curve for curve in curves if curve]
    if len(curves) < 2:
        return None
    steps = sorted(set.intersection(*(set(curve) for curve in curves)))
    columns: dict[str, Any] = {"step": steps, "mean": [], "low": [], "high": [], "n": len(curves)}
    for step in steps:
        values = [curve[step] for curve in curves]
        spread = asdict(Spread.of(values)) if all(map(math.isfinite, values)) else {}  # else a gap
        for name in ("mean", "low", "high"):
            columns[name].append(spread.get(name))
    return columns


def describe_sweep(runs: Sequence[SweepRun], beside: Path) -> dict[str, Any]:
    """All that a page shows of a sweep besides its runs.

    Args:
        runs: Its runs that have begun.
        beside: Folder of the page, from which runs are linked.

    Returns:
        Plain values: `runs` (`values`, `state`, `link` to its own page, None where there is none, and `final`, its last
        values by metric), `metrics` (those of `final`), and `groups` (`name`, the numbers of its `runs`, how many are
        `finished`, `final`, the spread of their last values by metric, and `bands` by metric, see `draw_band`).
    """
    return {
        "level": LEVEL,
        "runs": [
            {
                "values": dict(run.values),
                "state": run.state,
                "link": _link(run.folder / PAGE, beside),
                "final": {metric: run.final.get(metric) for metric in FINAL},
            }
            for run in runs
        ],
        "metrics": [metric for metric in FINAL if any(metric in run.final for run in runs)],
        "groups": [
            {
                "name": group.name,
                "runs": group.numbers,
                "finished": group.finished,
                "final": {metric: asdict(spread) for metric, spread in group.final.items()},
                "bands": _draw_bands([runs[n].rows for n in group.numbers if runs[n].state != "failed"]),
            }
            for group in group_runs(runs)
        ],
    }


def _draw_bands(runs: Sequence[Sequence[Row]]) -> dict[str, Any]:
    """The band of every metric but of ends of intervals, which are a run's own."""
    metrics = dict.fromkeys(metric for rows in runs for row in rows for metric in row if metric != "step")
    own = [metric for metric in metrics if not metric.endswith(("_low", "_high"))]
    return {metric: band for metric in own if (band := draw_band(runs, metric)) is not None}


def _link(page: Path, beside: Path) -> str | None:
    return quote(os.path.relpath(page, beside)) if page.is_file() else None


@cache
def student(exceeded: float, freedom: int) -> float:
    """The quantile of Student's distribution that is exceeded with this probability, by bisection of its integral."""
    if exceeded > 0.5:
        return -student(1 - exceeded, freedom)
    middle = min(1 - 2 * exceeded, 1 - 1e-13)
    low, high = 0.0, 1.0
    while _middle(high, freedom) < middle:
        high *= 2
    for _ in range(60):
        half = (low + high) / 2
        if _middle(half, freedom) < middle:
            low = half
        else:
            high = half
    return high


def _middle(t: float, freedom: int) -> float:
    """The probability of a value between −t and t: Abramowitz and Stegun 26.7.3 and 26.7.4."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine, sine = math.cos(angle), math.sin(angle)
    odd = freedom % 2
    term, total = (cosine if odd else 1.0), 0.0
    for power in range(1 + odd, freedom, 2):
        total += term
        term *= cosine**2 * power / (power + 1)
    return 2 / math.pi * (angle + sine * total) if odd else sine * total
