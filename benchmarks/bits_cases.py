"""The cases of `make bits`, as bits_cases.yaml lists them."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from benchmarks import real_model
from benchmarks.bits_names import put, rename_recipe

CASES = Path(__file__).with_name("bits_cases.yaml")
RUN = "run"
"""Folder of the results, in the folder of a case."""
REAL_MODEL = "real_model"
"""Folder of the real model among a case's inputs."""


@dataclass(frozen=True)
class Case:
    """One run of a command of Lockstep.

    Attributes:
        name: Name in the table and for `--only`.
        recipe: Its recipe, in the baseline's words.
        files: Text of the other files of its folder, by name.
        command: The command of Lockstep.
        asked: Model and data of a command that asks a model; none for train.
        warm_start: The recipe that is trained first.
        needs: Cases whose trained models it reads.
        module: A package that it needs.
        real_model: True if it reads the model of `make real-model`.
    """

    name: str
    recipe: dict[str, Any]
    files: dict[str, str]
    command: str = "train"
    asked: tuple[str, ...] = ()
    warm_start: dict[str, Any] | None = None
    needs: tuple[str, ...] = ()
    module: str | None = None
    real_model: bool = False

    @property
    def lacks(self) -> str | None:
        """What this machine lacks for it, as a sentence; None: it runs here."""
        if self.module is not None and find_spec(self.module) is None:
            return f"{self.module} is not installed"
        if self.real_model and not real_model.is_there():
            return f"{real_model.NAME} is not on this machine; `make real-model` makes it"
        return None

    def list_arguments(self) -> list[str]:
        """Arguments of `python -m lockstep`."""
        if self.command == "train":
            return ["train", "recipe.yaml"]
        return [self.command, *self.asked, "--recipe", "recipe.yaml", "--out", RUN]

    def write(self, folder: Path, todays_names: bool) -> None:
        """Writes recipes and files, with the names of today or with those of the baseline."""
        recipes = {"recipe.yaml": self.recipe}
        if self.warm_start is not None:
            recipes["warm_start.yaml"] = self.warm_start
        for name, recipe in recipes.items():
            tree = rename_recipe(recipe) if todays_names else recipe
            (folder / name).write_text(yaml.safe_dump(tree, sort_keys=False), encoding="utf-8")
        for name, text in self.files.items():
            (folder / name).write_text(text, encoding="utf-8")

    def digest(self, cases: Mapping[str, Case]) -> str:
        """Digest of all its inputs, the cases that it needs among them."""
        needed = [cases[name].digest(cases) for name in self.needs]
        whole = [
            self.recipe,
            self.files,
            self.list_arguments(),
            self.warm_start,
            needed,
        ]
        return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:16]


@cache
def load_cases(file: Path = CASES) -> dict[str, Case]:
    """All cases by name, in the order of the file."""
    tree = yaml.safe_load(file.read_text(encoding="utf-8"))
    return {
        name: _case(name, entry, tree["recipes"], tree["files"])
        for name, entry in tree["cases"].items()
    }


def _case(name: str, entry: dict[str, Any], recipes: dict[str, Any], files: dict[str, str]) -> Case:
    recipe = copy.deepcopy(recipes[entry["recipe"]])
    for key, value in entry.get("set", {}).items():
        put(recipe, key, value)
    warm_start = copy.deepcopy(recipes[entry["warm_start"]]) if "warm_start" in entry else None
    if warm_start is not None:
        put(warm_start, "run.folder", "warm_start")
    return Case(
        name=name,
        recipe={key: value for key, value in recipe.items() if value is not None},
        files=files,
        command=entry.get("command", "train"),
        asked=(entry["model"], entry["data"]) if "command" in entry else (),
        warm_start=warm_start,
        needs=tuple(entry.get("needs", ())),
        module=entry.get("module"),
        real_model=entry.get("real_model", False),
    )
