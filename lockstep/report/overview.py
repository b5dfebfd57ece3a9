"""The overview of a run on its page, besides its samples: state, progress, alarms, curves, clock, options."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep.config.loading import load
from lockstep.config.recipe_files import find_shipped
from lockstep.core.errors import LockstepError
from lockstep.report.agreement import read_agreement
from lockstep.report.alarms import find_alarms
from lockstep.report.certificate import CERTIFICATE, ReadCertificate
from lockstep.report.evaluation import describe_judges
from lockstep.report.held_out import HELD_OUT, best, figures, headlines
from lockstep.report.log import TIMINGS, read_environment, read_metrics, read_numbers, read_recipe, require_run
from lockstep.report.run_state import read_left_s, read_state
from lockstep.system.yaml12 import flat


def overview(folder: Path) -> dict[str, Any]:
    """Reads a run that is finished, under way, or barely begun.

    Returns:
        Plain values: `state` and `about_state` (see `RunState`), `left_s` (seconds of a running run; None
        where unknown), `alarms` (see `Alarm`), `agreement` (whether training and sampling agreed, in a sentence, and
        `agreed` in a word; None where nothing is sampled), `bound` (of agreement; None if there is none),
        `certificate` (`level`, `sentence`, and `facts` by name; None where there is none), `headlines`
        (what sums the run up, in words), `best` (metric → its best step), `step` (the
        last that was logged), `planned` (steps; None where the data decides), `metrics` and `timings` (name → `step`
        and `value`; None for what is not finite), `recipe` (key such as ppo.clip → value), `shipped` (the values of
        the shipped recipe that the run's differ from; None: it follows none), `environment`.

    Raises:
        ValueError: If there is no run in the folder.
    """
    require_run(folder)
    rows = read_metrics(folder)
    recipe = dict(flat(read_recipe(folder)))
    environment = read_environment(folder)
    planned, compared, state = recipe.get("run.max_steps", -1), read_agreement(folder), read_state(folder)
    step = max((int(row["step"]) for row in rows), default=0)
    timings = list(read_numbers(folder / TIMINGS))
    steps = planned if planned >= 0 else None
    return {
        "agreement": None if compared is None else compared.sentence,
        "agreed": None if compared is None else compared.word,
        "bound": None if compared is None or math.isnan(compared.bound) else compared.bound,
        "certificate": _certificate(folder),
        "headlines": [f"{label.strip()} {text}" for label, text in headlines(rows)] + describe_judges(folder),
        "best": _best_steps(rows),
        "alarms": [alarm.plain for alarm in find_alarms(rows)],
        "state": state.word,
        "about_state": state.text,
        "left_s": read_left_s(timings, step, steps) if state.word == "running" else None,
        "step": step,
        "planned": steps,
        "metrics": _series(rows),
        "timings": _series(timings),
        "recipe": recipe,
        "shipped": _differences(recipe, environment.get("recipe")),
        "environment": environment,
    }


def _certificate(folder: Path) -> dict[str, Any] | None:
    found = ReadCertificate.of(folder / CERTIFICATE)
    if found is None:
        return None
    return {"level": found.level, "sentence": found.sentence, "facts": list(found.facts())}


def _best_steps(rows: Sequence[Mapping[str, float]]) -> dict[str, int]:
    """The step at which each figure on held-out rows was best, where there are several."""
    known = {metric: figures(rows, metric) for metric in HELD_OUT}
    return {metric: best(series, HELD_OUT[metric][1]).step for metric, series in known.items() if len(series) > 1}


def _differences(recipe: Mapping[str, Any], name: str | None) -> dict[str, Any] | None:
    """The options in which a run differs from the shipped recipe that it began with, with the values shipped."""
    if name not in find_shipped():
        return None
    try:
        shipped = dict(flat(load(name).dump()))
    except LockstepError:  # a plugin that it needs is gone
        return None
    differing = [key for key in {**shipped, **recipe} if shipped.get(key) != recipe.get(key)]
    return {key: shipped.get(key) for key in differing}


def _series(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, list[float | None]]]:
    """Rows as columns: each name's steps and values, in the order they were logged."""
    series: dict[str, dict[str, list[float | None]]] = {}
    for row in rows:
        for name, value in row.items():
            if name != "step":
                column = series.setdefault(name, {"step": [], "value": []})
                column["step"].append(row["step"])
                column["value"].append(value if math.isfinite(value) else None)
    return series
