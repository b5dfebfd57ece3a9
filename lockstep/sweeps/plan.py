"""The plan of a sweep: every combination as a resolved recipe, and the note of them in the sweep's folder."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from lockstep.algorithms.base import Algorithm
from lockstep.algorithms.rows import DataFiles, data_files
from lockstep.config.hub import fetch_names, require_pinned
from lockstep.config.loading import Loaded, load
from lockstep.config.recipe_files import Layer
from lockstep.errors import InputError
from lockstep.records import is_file, read_record
from lockstep.report.sweeps import SWEEP
from lockstep.run.identity import Identity, differences, identity, recipe_identity
from lockstep.sweeps.grid import Combination, combine, split_words
from lockstep.whole_files import write_whole

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

    def identify(self, digests: dict[DataFiles, dict[str, str]]) -> Identity:
        """All that its results depend on, as a checkpoint notes it; of data and models, those that are there now.

        Args:
            digests: Those of data that other runs have, too; that of this one is added.
        """
        require_pinned(self.loaded, "a sweep")
        loaded = fetch_names(self.loaded)
        recipe = loaded.expect(Algorithm)
        if recipe.data.task is not None:  # made by options and code
            data = dict[str, str]()
        else:
            files = data_files(recipe.data, self.folder)
            data = digests[files] = digests[files] if files in digests else files.digests()
        model = None if recipe.model.path is None else Path(recipe.model.path)
        return identity(loaded, data, model if model is not None and model.is_dir() else None)


@dataclass(frozen=True)
class SweepPlan:
    """The runs of a sweep and its folder."""

    folder: Path
    runs: Sequence[PlannedRun]

    @cached_property
    def identities(self) -> dict[str, Identity]:
        """All that the results of each run depend on, by its name."""
        digests: dict[DataFiles, dict[str, str]] = {}
        return {run.name: run.identify(digests) for run in self.runs}

    def require_same(self) -> _Noted | None:
        """Returns what the folder holds of this sweep; None where it is new.

        Raises:
            InputError: If the folder holds another sweep: a run is missing now, or has other options, data, models or
                code.
        """
        now, noted = self.identities, _read(self.folder)
        if noted is None:
            return None
        gone = [name for name in noted.runs if name not in now]
        changed = [
            f"{name}: {line}"
            for name in noted.runs.keys() & now.keys()
            for line in differences({**noted.common, **noted.own[name]}, now[name])
        ]
        if gone or changed:
            lines = [*(f"{name} is no run of it any more" for name in gone), *sorted(changed)]
            raise InputError(
                f"{self.folder} holds another sweep:\n  " + "\n  ".join(lines[:20]) + "\nchoose another --name, or "
                "put back what was before; more values may join a sweep"
            )
        return noted

    def write(self, threads: int) -> None:
        """Writes the note of the sweep into its folder, atomically."""
        found = self.identities
        first = next(iter(found.values()))
        common = {key: value for key, value in first.items() if all(_has(own, key, value) for own in found.values())}
        own = {name: {k: v for k, v in of.items() if k not in common} for name, of in found.items()}
        values = {run.name: dict(run.values) for run in self.runs}
        noted = {"threads": threads, "runs": values, "common": common, "own": own}
        self.folder.mkdir(parents=True, exist_ok=True)
        write_whole(self.folder / SWEEP, [json.dumps(noted, indent=1, ensure_ascii=False).encode() + b"\n"])


@dataclass(frozen=True)
class _Noted:
    """A sweep as its folder notes it: the identity that all runs share, and what is each run's own."""

    threads: int
    runs: dict[str, dict[str, Any]]
    common: dict[str, Any]
    own: dict[str, dict[str, Any]]


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


def _has(options: Mapping[str, Any], key: str, value: Any) -> bool:
    return key in options and options[key] == value


def _read(folder: Path) -> _Noted | None:
    file = folder / SWEEP
    if not is_file(file):
        return None
    return read_record(file, _Noted, "restore the file, or choose another --name")
