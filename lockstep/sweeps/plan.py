"""The plan of a sweep: a resolved recipe per combination, recorded in the sweep's folder."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.algorithms.base import Algorithm
from lockstep.config.hub import require_pinned
from lockstep.config.loading import LoadedRecipe, load_recipe, load_run
from lockstep.config.recipe_files import RecipeLayer
from lockstep.config.user_code import is_in_program
from lockstep.core.errors import InputError
from lockstep.report.sweeps import SWEEP, is_sweep, read_sweep
from lockstep.run.folder.identity import list_differences, recipe_identity
from lockstep.sweeps.grid import GridPoint, combine_values, split_words
from lockstep.system.records import is_file
from lockstep.system.whole_files import write_whole
from lockstep.system.yaml12 import flatten_tree

RecipeResolver = Callable[[GridPoint, RecipeLayer], LoadedRecipe]
"""Resolves a combination's recipe; the given options come after the layer with the run's folder."""


@dataclass(frozen=True)
class PlannedRun:
    """A run of a sweep: its values, by option, and its recipe."""

    values: Mapping[str, Any]
    loaded: LoadedRecipe

    @property
    def folder(self) -> Path:
        return self.loaded.run_folder

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def is_finished(self) -> bool:
        return (self.folder / "final").is_dir()


@dataclass(frozen=True)
class SweepPlan:
    """The runs of a sweep and its folder."""

    folder: Path
    runs: Sequence[PlannedRun]

    def require_same(self) -> None:
        """Raises InputError if the folder holds a different sweep: missing runs, other options."""
        if not is_sweep(self.folder):
            return
        names = {run.name for run in self.runs}
        lines: list[str] = []
        for known in read_sweep(self.folder):
            if known.folder.name not in names:
                lines.append(f"{known.folder.name} is no longer one of its runs")
        for run in self.runs:
            if is_file(run.folder / "recipe.yaml"):
                before = recipe_identity(load_run(run.folder))
                for line in list_differences(before, recipe_identity(run.loaded)):
                    lines.append(f"{run.name}: {line}")
        if lines:
            differing = "\n  ".join(sorted(lines)[:20])
            raise InputError(
                f"{self.folder} holds a different sweep:\n  {differing}\nchoose a different "
                "--name, or restore the options; a sweep accepts only added values"
            )

    def write_plan(self) -> None:
        """Writes the runs and their values into the sweep's folder, atomically."""
        noted = {run.name: dict(run.values) for run in self.runs}
        write_whole(
            self.folder / SWEEP, [json.dumps(noted, indent=1, ensure_ascii=False).encode() + b"\n"]
        )


def plan_words(recipe: str, words: Sequence[str], name: str | None) -> SweepPlan:
    """Plans the sweep of a command: a recipe and `key=value` words, some with several values."""
    fixed, grid = split_words(words)

    def resolve_words(combination: GridPoint, folder: RecipeLayer) -> LoadedRecipe:
        return load_recipe(recipe, [*fixed, *combination.overrides], [folder])

    return plan_grid(grid, resolve_words, name or name_sweep(recipe, grid))


def plan_grid(grid: Mapping[str, Sequence[Any]], resolve: RecipeResolver, name: str) -> SweepPlan:
    """Resolves all combinations before anything starts.

    Args:
        grid: Options, and the values of each.
        resolve: Makes a recipe from a combination.
        name: Name of the sweep's folder in `sweeps/`.

    Raises:
        InputError: An invalid combination, by name; or two with equal options.
    """
    if not re.fullmatch(r"\w[\w.+-]*", name):
        raise InputError(
            f"the sweep's name is {name!r}; use only letters, digits and _ . + - (it becomes a "
            "folder name)"
        )
    folder = Path("sweeps") / name
    runs: list[PlannedRun] = []
    for combination in combine_values(grid):
        runs.append(_resolve_run(combination, resolve, folder / combination.name))
    known: dict[str, str] = {}
    for run in runs:
        options = run.loaded.dump_options()
        del options["run"]["folder"]
        text = json.dumps(options, sort_keys=True)
        if text in known:
            raise InputError(
                f"{known[text]} and {run.name} have equal options; give each value once"
            )
        known[text] = run.name
    return SweepPlan(folder, runs)


def name_sweep(recipe: str, grid: Mapping[str, Sequence[Any]]) -> str:
    """The default name of a sweep: the recipe's name and the options that it varies."""
    return "-".join([Path(recipe).stem, *grid])


def _resolve_run(combination: GridPoint, resolve: RecipeResolver, folder: Path) -> PlannedRun:
    try:
        loaded = resolve(combination, RecipeLayer("sweep", {"run": {"folder": str(folder)}}))
        loaded.expect_recipe(Algorithm)
    except InputError as error:
        raise InputError(
            f"{' '.join(combination.overrides)} is invalid, so no run was started:\n{error}"
        ) from error
    require_pinned(loaded, "a sweep")
    if loaded.run_folder != folder:
        raise InputError(
            "run.folder: each run has its folder in the sweep's folder; set that with --name"
        )
    for keys, value in flatten_tree(loaded.build_identity()):
        if isinstance(value, str) and is_in_program(value):
            raise InputError(
                f"{'.'.join(keys)} is a Python object of this program, but each run of a sweep is "
                "a separate process; move it to a file: file.py:name"
            )
    return PlannedRun(combination.values, loaded)
