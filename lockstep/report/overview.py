"""A run's overview on its page: state, progress, alarms, curves, timings, options."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lockstep.report.agreement import read_agreement
from lockstep.report.alarms import find_alarms
from lockstep.report.certificate import CERTIFICATE, ReadCertificate
from lockstep.report.held_out import HELD_OUT, find_best, list_figures, list_headlines
from lockstep.report.log import (
    TIMINGS,
    read_environment,
    read_metrics,
    read_numbers,
    read_recipe,
    require_run,
)
from lockstep.report.run_state import read_state
from lockstep.system.yaml12 import flatten_tree


def read_overview(folder: Path) -> dict[str, Any]:
    """Reads a run that is finished, in progress, or just started.

    Returns:
        Plain values: `state` and `about_state` (see `RunState`), `alarms` (see `RunAlarm`),
            `agreement` (whether training and sampling agreed, in a sentence, and `agreed` in a
            word; None without sampling), `bound` (of agreement; None if there is none),
            `certificate` (`level` and `sentence`; None if there is none), `headlines` (the run's
            summary, in words), `best` (metric → its best step, if logged several times), `step`
            (the last logged step), `planned` (steps; None if the data decides), `metrics` and
            `timings` (name → `step` and `value`; None for values that are not finite), `recipe`
            (key such as ppo.clip → value), `environment`.

    Raises:
        ValueError: The folder holds no run.
    """
    require_run(folder)
    rows = read_metrics(folder)
    recipe = {".".join(keys): value for keys, value in flatten_tree(read_recipe(folder))}
    certificate = ReadCertificate.from_file(folder / CERTIFICATE)
    planned = recipe.get("run.max_steps", -1)
    compared = read_agreement(folder)
    state = read_state(folder)
    step = max((int(row["step"]) for row in rows), default=0)
    timings = list(read_numbers(folder / TIMINGS))
    steps = planned if planned >= 0 else None
    best: dict[str, int] = {}
    for metric, (_, better) in HELD_OUT.items():
        series = list_figures(rows, metric)
        if len(series) > 1:
            best[metric] = find_best(series, better).step
    return {
        "agreement": None if compared is None else compared.sentence,
        "agreed": None if compared is None else compared.word,
        "bound": None if compared is None or math.isnan(compared.bound) else compared.bound,
        "certificate": None
        if certificate is None
        else {"level": certificate.level, "sentence": certificate.sentence},
        "headlines": [f"{label.strip()} {text}" for label, text in list_headlines(rows)],
        "best": best,
        "alarms": [
            {"metric": alarm.metric, "steps": alarm.steps, "sentence": alarm.sentence}
            for alarm in find_alarms(rows)
        ],
        "state": state.word,
        "about_state": state.text,
        "step": step,
        "planned": steps,
        "metrics": _collect_series(rows),
        "timings": _collect_series(timings),
        "recipe": recipe,
        "environment": read_environment(folder),
    }


def _collect_series(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, list[float | None]]]:
    """Rows as columns: each name's steps and values, in logged order."""
    series: dict[str, dict[str, list[float | None]]] = {}
    for row in rows:
        for name, value in row.items():
            if name != "step":
                column = series.setdefault(name, {"step": [], "value": []})
                column["step"].append(row["step"])
                column["value"].append(value if math.isfinite(value) else None)
    return series
