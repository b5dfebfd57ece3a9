"""The plan of a sweep: every combination as a resolved recipe, and the note of them in the sweep's folder."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.algorithms.base import Algorithm
from lockstep.config.hub import require_pinned
from lockstep.config.loading import Loaded, load, load_run
from lockstep.config.recipe_files import Layer
from lockstep.core.errors import InputError
from lockstep.report.sweeps import SWEEP, NotedSweep, is_sweep
from lockstep.run.folder.identity import Identity, differences, recipe_identity
from lockstep.sweeps.grid import Combination, combine, split_words
from lockstep.system.records import is_file
from lockstep.system.whole_files import write_whole

Resolve = Callable[[Combination, Layer], Loaded]
"""Resolves the recipe of a combination; the layer has the run's folder, and options that are given come after it."""

SWEEPS = Path("sweeps")
"""Folder of sweeps."""

_NAME = re.compile(r"\w[\w.+-]*")


@dataclass(frozen=True)
class PlannedRun:
    """A run of a sweep.

    Attributes:
        name: Name of its folder.
        values: The values that are its own, by option.
        loaded: Its recipe.
    """

    name: str
    values: Mapping[str, Any]
    loaded: Loaded

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self.loaded.run_folder

    @property
    def options(self) -> Identity:
        """All options that change a result."""
        return recipe_identity(self.loaded)


@dataclass(frozen=True)
class SweepPlan:
    """The runs of a sweep and its folder."""

    folder: Path
    runs: Sequence[PlannedRun]

    def require_same(self) -> int | None:
        """Requires that the folder holds this sweep or none.

        Returns:
            Threads of each run so far, on which its bits may depend; None: the sweep is new.

        Raises:
            InputError: If the folder holds another sweep: one of its runs is missing now, or has other options.
        """
        if not is_sweep(self.folder):
            return None
        noted = NotedSweep.of(self.folder)
        lines = [
            f"{name} is not one of its runs any more" for name in noted.runs.keys() - {run.name for run in self.runs}
        ]
        for run in self.runs:
            if is_file(run.folder / "recipe.yaml"):
                before = recipe_identity(load_run(run.folder))
                lines += [f"{run.name}: {line}" for line in differences(before, run.options)]
        if lines:
            differing = "\n  ".join(sorted(lines)[:20])
            raise InputError(
                f"{self.folder} holds another sweep:\n  {differing}\nchoose another --name, or restore the options; "
                "you may add values to a sweep"
            )
        return noted.threads

    def write(self, threads: int) -> None:
        """Writes the runs, their values and threads into the sweep's folder, atomically."""
        noted = {"threads": threads, "runs": {run.name: dict(run.values) for run in self.runs}}
        text = json.dumps(noted, indent=1, ensure_ascii=False)
        write_whole(self.folder / SWEEP, [text.encode() + b"\n"])


def plan_words(recipe: str, words: Sequence[str], name: str | None) -> SweepPlan:
    """The sweep of a command: a recipe and `key=value` words, some with several values.

    Raises:
        InputError: One sentence for each thing that is wrong, and the first combination that has it.
    """
    fixed, axes = split_words(words)

    def resolve(combination: Combination, folder: Layer) -> Loaded:
        return load(recipe, [*fixed, *combination.overrides], [folder])

    return plan_combinations(combine(axes), resolve, name)


def plan_combinations(combinations: Sequence[Combination], resolve: Resolve, name: str | None) -> SweepPlan:
    """Resolves every combination before anything starts.

    Args:
        combinations: Combinations of values.
        resolve: Makes a recipe of one.
        name: Name of the sweep's folder in `sweeps/`; None: the recipe's, with a digest of all options.

    Raises:
        InputError: A combination is refused, and named; or two have equal options.
    """
    folder = None if name is None else SWEEPS / _check_name(name)
    if folder is None:
        trial = [_resolve(combination, resolve, SWEEPS / combination.name) for combination in combinations]
        text = json.dumps([run.options for run in trial], sort_keys=True)
        folder = SWEEPS / f"{trial[0].loaded.name}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"
    runs = [_resolve(combination, resolve, folder / combination.name) for combination in combinations]
    _require_different(runs)
    return SweepPlan(folder, runs)


def _resolve(combination: Combination, resolve: Resolve, folder: Path) -> PlannedRun:
    try:
        loaded = resolve(combination, Layer("sweep", {"run": {"folder": str(folder)}}))
        loaded.expect(Algorithm)
    except InputError as error:
        raise InputError(f"{' '.join(combination.overrides)} is refused, so nothing is started:\n{error}") from error
    require_pinned(loaded, "a sweep")
    if loaded.run_folder != folder:
        raise InputError("run.folder: each run of a sweep has a folder in the sweep's; say --name to name that")
    return PlannedRun(combination.name, combination.values, loaded)


def _require_different(runs: Sequence[PlannedRun]) -> None:
    """Raises InputError for two runs of equal options, which would count as two of a group."""
    known: dict[str, str] = {}
    for run in runs:
        options = run.loaded.dump()
        del options["run"]["folder"]
        other = known.setdefault(json.dumps(options, sort_keys=True), run.name)
        if other != run.name:
            raise InputError(f"{other} and {run.name} are one run: their options are equal; name each value once")


def _check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InputError(f"the sweep's name is {name!r}; use letters, digits and _ . + -, for it names a folder")
    return name
