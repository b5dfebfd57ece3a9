"""Sweeps as read from their folder: runs with their values, grouped over seeds.

Groups have means and their intervals.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal

from lockstep.core import exit_codes
from lockstep.report.held_out import HELD_OUT
from lockstep.report.log import read_metrics
from lockstep.report.run_state import StateWord, read_state
from lockstep.report.summary import PAGE, find_exit_code
from lockstep.report.terminal import summary_table
from lockstep.system.records import is_file, read_record

SWEEP = "sweep.json"
"""File in a sweep's folder with the values of its runs, by name and option."""

FINAL = (*HELD_OUT, "train/reward", "train/kl", "train/loss", "agreement/token_mult_prob_error")
"""Metrics whose last values a sweep compares."""

SEED = "seed"
"""The option over which runs repeat: runs that differ only in it are a group."""

LEVEL = 0.95
"""Confidence of an interval."""


@dataclass(frozen=True)
class SweepRun:
    """A run of a sweep.

    Attributes:
        folder: Its folder.
        values: Its values, by option.
    """

    folder: Path
    values: Mapping[str, Any]

    @property
    def group_name(self) -> str:
        """Name of the group of runs that differ only in the seed."""
        return (
            " ".join(f"{key}={value}" for key, value in self.values.items() if key != SEED) or "all"
        )

    @cached_property
    def rows(self) -> Sequence[Mapping[str, float]]:
        """The logged metrics; empty before the run has started."""
        return read_metrics(self.folder)

    @cached_property
    def state(self) -> StateWord | Literal["failed"]:
        """The state of its folder; `failed` if it died, broke a promise or learned nothing."""
        state = read_state(self.folder).word
        if state == "finished" and find_exit_code(self.folder) != exit_codes.OK:
            return "failed"
        return "failed" if state == "died" else state

    @cached_property
    def final_values(self) -> Mapping[str, float]:
        """The last value of each metric of `FINAL` that it logs; may be NaN or infinite."""
        last: dict[str, float] = {}
        for row in self.rows:
            last.update(row)
        return {metric: last[metric] for metric in FINAL if metric in last}


@dataclass(frozen=True)
class SeedGroup:
    """Runs that differ only in the seed.

    Attributes:
        name: Their other values.
        runs: Its runs.
    """

    name: str
    runs: Sequence[SweepRun]

    @property
    def finished_runs(self) -> Sequence[SweepRun]:
        """The runs that finished without failing."""
        return [run for run in self.runs if run.state == "finished"]

    @property
    def final_spread(self) -> Mapping[str, dict[str, float]]:
        """Spread of finished runs' last values, by metric; n counts only finite values."""
        found: dict[str, dict[str, float]] = {}
        for metric in FINAL:
            values = [run.final_values.get(metric, math.nan) for run in self.finished_runs]
            finite = [value for value in values if math.isfinite(value)]
            if finite:
                found[metric] = measure_spread(finite)
        return found

    def draw_bands(self) -> dict[str, dict[str, Any]]:
        """Columns `step`, `mean`, `low`, `high` and `n` for each metric that two runs log.

        `n` is the number of runs. A band ends with the shortest run. Interval ends (`_low`,
        `_high`) have no bands, and failed runs do not count.
        """
        runs = [run for run in self.runs if run.state != "failed"]
        bands: dict[str, dict[str, Any]] = {}
        # by metric and run: value by step
        logged: dict[str, dict[Path, dict[int, float]]] = {}
        for run in runs:
            for row in run.rows:
                for metric, value in row.items():
                    curve = logged.setdefault(metric, {}).setdefault(run.folder, {})
                    curve[int(row["step"])] = value
        for metric, by_run in logged.items():
            curves = list(by_run.values())
            if len(curves) > 1 and metric != "step" and not metric.endswith(("_low", "_high")):
                steps = sorted(set.intersection(*map(set, curves)))
                spreads = list[dict[str, float]]()
                for step in steps:
                    spreads.append(measure_spread([curve[step] for curve in curves]))
                bands[metric] = {"step": steps, "n": len(curves)}
                for end in ("mean", "low", "high"):
                    bands[metric][end] = [spread[end] for spread in spreads]
        return bands


def measure_spread(values: Sequence[float]) -> dict[str, float]:
    """The `count` and `mean` of values, and their Student-t interval `low` to `high` at `LEVEL`.

    NaN if a value is not finite; the interval is NaN for a single value.
    """
    count = len(values)
    mean = fmean(values) if all(map(math.isfinite, values)) else math.nan
    half = math.nan
    if count > 1 and math.isfinite(mean):
        half = student_quantile((1 - LEVEL) / 2, count - 1) * stdev(values) / math.sqrt(count)
    return {"count": count, "mean": mean, "low": mean - half, "high": mean + half}


def _format_spread(spread: Mapping[str, float] | None) -> str:
    if spread is None:
        return "–"
    if math.isnan(spread["low"]):
        ends = ""
    else:
        ends = f" [{spread['low']:.4g}, {spread['high']:.4g}]"
    return f"{spread['mean']:.4g}{ends}, n={spread['count']}"


def is_sweep(folder: Path) -> bool:
    """True for the folder of a sweep."""
    return folder.is_dir() and is_file(folder / SWEEP)


def read_sweep(folder: Path) -> list[SweepRun]:
    """A sweep's runs in order, started or not; raises InputError if its file is invalid."""
    noted = read_record(
        folder / SWEEP, dict[str, dict[str, Any]], "restore the file, or choose another --name"
    )
    return [SweepRun(folder / name, values) for name, values in noted.items()]


def group_runs(runs: Sequence[SweepRun]) -> list[SeedGroup]:
    """The groups of a sweep's runs."""
    groups: dict[str, list[SweepRun]] = {}
    for run in runs:
        groups.setdefault(run.group_name, []).append(run)
    return [SeedGroup(name, some) for name, some in groups.items()]


def list_runs(runs: Sequence[SweepRun]) -> list[dict[str, Any]]:
    """A row for each run: name of its folder, values, state and final metrics."""
    found: list[dict[str, Any]] = []
    for run in runs:
        found.append({"run": run.folder.name, **run.values, "state": run.state, **run.final_values})
    return found


def list_spreads(runs: Sequence[SweepRun]) -> list[dict[str, Any]]:
    """A row per group and final metric of finished runs.

    Its keys are `group`, `metric`, `count`, `mean`, `low` and `high`.
    """
    rows: list[dict[str, Any]] = []
    for group in group_runs(runs):
        for metric, spread in group.final_spread.items():
            rows.append({"group": group.name, "metric": metric, **spread})
    return rows


def summarize_sweep(folder: Path) -> str:
    """The final values of each group, and the path of the report."""
    runs = read_sweep(folder)
    metrics = _list_metrics(runs)
    table = [["", "finished", *metrics]]
    for group in group_runs(runs):
        cells = [_format_spread(group.final_spread.get(metric)) for metric in metrics]
        table.append([group.name, f"{len(group.finished_runs)} of {len(group.runs)}", *cells])
    about = f"last values: mean over finished runs, {LEVEL:.0%} Student-t intervals over seeds"
    return "\n".join([summary_table(table), about, f"{folder}, report: {folder / PAGE}"])


def describe_sweep(runs: Sequence[SweepRun]) -> dict[str, Any]:
    """Data about a sweep's started runs for their page, as plain values."""
    groups: list[dict[str, Any]] = []
    for group in group_runs(runs):
        about = {
            "name": group.name,
            "runs": list(map(runs.index, group.runs)),
            "finished": len(group.finished_runs),
            "final": group.final_spread,
            "bands": group.draw_bands(),
        }
        groups.append(about)
    return {
        "level": LEVEL,
        "runs": [{"state": run.state, "final": dict(run.final_values)} for run in runs],
        "metrics": _list_metrics(runs),
        "groups": groups,
    }


def _list_metrics(runs: Sequence[SweepRun]) -> list[str]:
    logged = set[str]().union(*(run.final_values for run in runs))
    return [metric for metric in FINAL if metric in logged]


@cache
def student_quantile(exceeded: float, freedom: int) -> float:
    """The upper quantile of Student's t distribution, by bisection of its integral."""
    if exceeded > 0.5:
        return -student_quantile(1 - exceeded, freedom)
    middle = min(1 - 2 * exceeded, 1 - 1e-13)
    low = 0.0
    high = 1.0
    while _central_probability(high, freedom) < middle:
        high *= 2
    for _ in range(60):
        half = (low + high) / 2
        if _central_probability(half, freedom) < middle:
            low = half
        else:
            high = half
    return high


def _central_probability(t: float, freedom: int) -> float:
    """The probability of a value between −t and t: Abramowitz and Stegun 26.7.3 and 26.7.4."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine = math.cos(angle)
    sine = math.sin(angle)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = 0.0
    for power in range(1 + odd, freedom, 2):
        total += term
        term *= cosine**2 * power / (power + 1)
    if odd:
        return 2 / math.pi * (angle + sine * total)
    return sine * total
