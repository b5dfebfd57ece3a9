"""The overview of a run on its page, besides its samples: progress, curves, clock, options."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lockstep.report.agreement import read_agreement
from lockstep.report.held_out import figures, from_to, headlines
from lockstep.report.log import TIMINGS, lines, read_metrics, read_recipe, require_run


def overview(folder: Path) -> dict[str, Any]:
    """Reads a run that is finished, under way, or barely begun.

    Returns:
        Plain values: `finished`, `agreement` (whether training and sampling agreed, in a sentence; None where nothing
        is sampled), `headlines` (figures on held-out rows and sampled rewards, in words), `step` (the last that was
        logged), `planned` (steps; None where the data decides), `metrics` and `timings` (name → `step` and `value`;
        None for what is not finite), `recipe` (key such as ppo.clip → value), `environment`.

    Raises:
        ValueError: If there is no run in the folder.
    """
    require_run(folder)
    rows = read_metrics(folder)
    recipe = dict(flat(read_recipe(folder)))
    environment = folder / "environment.json"
    rewards = figures(rows, "train/reward")
    planned, compared = recipe.get("run.max_steps", -1), read_agreement(folder)
    return {
        "agreement": None if compared is None else compared.sentence,
        "headlines": [*headlines(rows), *([f"sampled reward {from_to(rewards)}"] if rewards else [])],
        "finished": (folder / "final").exists(),
        "step": max((int(row["step"]) for row in rows), default=0),
        "planned": planned if planned >= 0 else None,
        "metrics": _series(rows),
        "timings": _series(row for row, _ in lines(folder / TIMINGS)),
        "recipe": recipe,
        "environment": json.loads(environment.read_text(encoding="utf-8")) if environment.exists() else {},
    }


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


def flat(tree: Any, prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Options by their whole key; a list is one value, and so is a section that says nothing."""
    if not isinstance(tree, dict) or not tree:
        yield prefix, tree
        return
    for key, value in tree.items():
        yield from flat(value, f"{prefix}.{key}" if prefix else str(key))
