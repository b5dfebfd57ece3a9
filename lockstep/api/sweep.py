"""Sweeps from Python: a recipe or algorithm with several option values, and a results table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lockstep.api.run import Run
from lockstep.api.short_errors import shorten_traceback
from lockstep.api.trainer import Trainer
from lockstep.api.values import build_tree
from lockstep.config.loading import LoadedRecipe, load_options
from lockstep.config.recipe_files import RecipeLayer
from lockstep.core.errors import InputError
from lockstep.sweeps.grid import GridPoint
from lockstep.system.printable import print_status
from lockstep.system.yaml12 import find_value, nest_value


@dataclass(frozen=True)
class Sweep:
    """A sweep's folder; finished, stopped early, or still running in another process.

    Attributes:
        folder: The folder.
    """

    folder: Path

    @property
    def runs(self) -> dict[str, Run]:
        """The runs by name, such as `seed=0_ppo.clip=0.1`, including those not started."""
        from lockstep.report.sweeps import read_sweep

        return {run.folder.name: Run(run.folder) for run in read_sweep(self.folder)}

    @property
    def table(self) -> list[dict[str, Any]]:
        """A row per run: name, values, state, and the last value of each compared metric.

        `pandas.DataFrame(sweep.table)` is a table.
        """
        from lockstep.report.sweeps import list_runs, read_sweep

        return list_runs(read_sweep(self.folder))

    @property
    def groups(self) -> list[dict[str, Any]]:
        """A row per metric and group of runs that differ only in the seed: mean and interval.

        The columns, over finished runs: `group`, `metric`, `count`, `mean`, `low`, `high`; the
        interval is Student's t at 95 %, NaN for a single run.
        """
        from lockstep.report.sweeps import list_spreads, read_sweep

        return list_spreads(read_sweep(self.folder))


@shorten_traceback
def sweep(
    recipe: str | Path | Trainer,
    values: Mapping[str, Iterable[Any]],
    *,
    name: str | None = None,
    jobs: int = 1,
    **options: Any,
) -> Sweep:
    """Runs or resumes a sweep over all combinations of option values.

    A failed run does not stop the others; `Sweep.table` has the state of each.

    Args:
        recipe: A recipe's name or file, or an algorithm such as `lockstep.GRPO(...)`.
        values: Options with their values: `{"seed": range(5), "ppo.clip": [0.1, 0.2]}`.
        name: Name of its folder in `sweeps/`; None means the recipe's name and the varied options.
        jobs: Runs at a time.
        options: Options of the recipe, like those of `Trainer`; an algorithm has its own.

    Raises:
        InputError: A combination is invalid; the message names it, and nothing was started.
    """
    from lockstep.run.stop import StoppedRun
    from lockstep.sweeps.plan import name_sweep, plan_grid
    from lockstep.sweeps.sweep import run_sweep

    trainer = recipe if isinstance(recipe, Trainer) else None
    base = str(recipe) if trainer is None else trainer._loaded.name
    if trainer is None:
        resolve = partial(load_options, Path(base).stem, base)
    else:
        resolve = trainer._resolve
    common = RecipeLayer("lockstep.sweep", build_tree(options))
    grid: dict[str, list[Any]] = {}
    for key, own in values.items():
        if key in ("train", "validation"):
            raise InputError(f"{key} is short for data.{key}; sweep that, with files")
        path = key.split(".")
        grid[key] = [find_value(build_tree(nest_value(key, value)), path) for value in own]

    def resolve_with(combination: GridPoint, folder: RecipeLayer) -> LoadedRecipe:
        layers: list[RecipeLayer] = []
        for key, value in combination.values.items():
            layers.append(RecipeLayer("lockstep.sweep", nest_value(key, value)))
        return resolve(folder, common, *layers)

    plan = plan_grid(grid, resolve_with, name or name_sweep(base, grid))
    try:
        run_sweep(plan, jobs)
    except StoppedRun as stopped:
        print_status(f"lockstep: {stopped}")
    return Sweep(plan.folder)
