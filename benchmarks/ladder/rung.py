"""The parts of the ladder: a rung is a task with arms, and claims about which arm is better.

A rung is one file of `benchmarks/ladder/rungs/`, which has a `RUNG`; its recipes lie beside it. All
rungs measure one number of which more is better.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from lockstep.config.loading import LoadedRecipe, load_recipe

RUNGS = Path(__file__).parent / "rungs"
ASSETS = "LOCKSTEP_ASSETS"
"""The variable that names a folder of models and data that do not ship."""


@dataclass(frozen=True)
class Arm:
    """One way to train on a rung.

    Attributes:
        recipe: A YAML file beside the rung, or a recipe that ships.
        options: Overrides, `key=value`.
        module: The program to run in place of `lockstep`, such as `benchmarks.unshifted`.
    """

    recipe: str
    options: tuple[str, ...] = ()
    module: str = "lockstep"

    def load(self, seed: int) -> LoadedRecipe:
        """Resolves the recipe for a seed."""
        beside = RUNGS / self.recipe
        return load_recipe(
            str(beside) if beside.is_file() else self.recipe, [*self.options, f"seed={seed}"]
        )


@dataclass(frozen=True)
class Claim:
    """A sentence that the figures must bear out: one arm ends above another.

    Attributes:
        better: An arm.
        worse: Another one.
        because: The reason, for the reader of the table.
        of: What is compared: the end, or the mean of the whole curve, which tells who is there
            first.
    """

    better: str
    worse: str
    because: str
    of: Literal["end", "curve"] = "end"


@dataclass(frozen=True)
class Rung:
    """A task of the ladder.

    Attributes:
        name: Its name, which is its file's.
        question: What it asks of an algorithm.
        metric: The metric of `metrics.jsonl` that is compared; more is better.
        arms: The ways to train, by name.
        seeds: Number of seeds: five where the task tells arms apart, three elsewhere.
        claims: What is expected of the figures.
        optimum: The metric's greatest expected value, where it is known in closed form.
        threshold: A value of the metric; the table says when each arm reaches it.
        last: The end of a curve is the mean of so many of its last points.
        measure: Another measure of a finished run, such as the exact value of its policy; it takes
            the run's folder. It replaces the end of the curve.
        needs_assets: True if its recipes name a model in the folder that LOCKSTEP_ASSETS names.
    """

    name: str
    question: str
    metric: str
    arms: Mapping[str, Arm]
    seeds: int = 5
    claims: tuple[Claim, ...] = ()
    optimum: float | None = None
    threshold: float | None = None
    last: int = 1
    measure: Callable[[Path], float] | None = field(default=None, compare=False)
    needs_assets: bool = False

    def __post_init__(self) -> None:
        for claim in self.claims:
            for name in (claim.better, claim.worse):
                assert name in self.arms, (
                    f"rung {self.name}: a claim names the arm {name}, which it does not have"
                )

    @property
    def missing(self) -> str:
        """What keeps the rung from being run on this machine; empty where nothing does."""
        if not self.needs_assets or os.environ.get(ASSETS):
            return ""
        return (
            f"the rung {self.name} needs a model that does not ship; set {ASSETS} to the "
            "folder that has it"
        )


def list_rungs() -> list[str]:
    """Names of all rungs."""
    return sorted(module.name for module in pkgutil.iter_modules([str(RUNGS)]))


def open_rung(name: str) -> Rung:
    """Imports a rung by its name."""
    rung = importlib.import_module(f"benchmarks.ladder.rungs.{name}").RUNG
    assert isinstance(rung, Rung), f"{name}.RUNG is not a Rung"
    assert rung.name == name, f"{name}.py holds the rung {rung.name}"
    return rung
