"""The files of recipes: those that ship, those of users, and the bases that they build on. Imports no torch."""

from __future__ import annotations

import os
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from lockstep import yaml12
from lockstep.config.errors import RecipeError, format_value
from lockstep.paths import expand

_LONGEST_BYTES = 1 << 20
_MOST_BASES = 100


@dataclass(frozen=True)
class Layer:
    """Options from one source: a recipe file, an override, a command or a program.

    Attributes:
        source: Its name, for messages.
        tree: The options.
        in_yaml: True if its author wrote YAML, and not Python.
        ships: True for a recipe that comes with Lockstep.
    """

    source: str
    tree: dict[str, Any]
    in_yaml: bool = True
    ships: bool = False


@cache
def find_shipped() -> dict[str, Path]:
    """The recipes that come with the packages, by name; each lies in the folder of what it runs."""
    folders = [Path(str(files(package))) for package in ("lockstep", "lockstep_doctor")]
    paths = [path for folder in folders for path in folder.rglob("recipes/*.yaml")]
    return {path.stem: path for path in sorted(paths, key=lambda path: path.stem)}


def find_recipe(recipe: str, beside: Path, asker: str) -> Path:
    """The file of a recipe; a path is relative to `beside`, and `asker` begins the error."""
    if recipe.endswith((".yaml", ".yml")) or "/" in recipe:
        path = beside / expand(recipe)
        if path.is_dir():
            raise RecipeError(f"{asker}{path} is a folder; a recipe is a YAML file{_run_hint(path)}")
        if not path.is_file():
            raise RecipeError(f"{asker}there is no recipe file {path}")
        return path
    names = find_shipped()
    if not Path(recipe).name:
        raise RecipeError(f"{asker}{recipe!r} names no recipe; say a name from `lockstep config`, or a YAML file")
    if recipe not in names:
        meant = (beside / recipe).with_suffix(".yaml")
        if (beside / recipe).exists() or meant.is_file():
            hint = f"; did you mean {meant}?" if meant.is_file() else _run_hint(beside / recipe)
            raise RecipeError(
                f"{asker}{recipe} is no recipe: that is a name from `lockstep config`, or a YAML file{hint}"
            )
        close = get_close_matches(recipe, names, 1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise RecipeError(
            f"{asker}no recipe {recipe!r} ships with Lockstep; {hint}there are: {', '.join(names) or 'none'}; "
            "a file of yours ends in .yaml"
        )
    return names[recipe]


def _run_hint(path: Path) -> str:
    """Returns a hint where a path is a run's folder and a recipe is asked for."""
    return f"; {path} is a run, whose recipe is {path / 'recipe.yaml'}" if (path / "recipe.yaml").is_file() else ""


def read_layers(path: Path, above: tuple[Path, ...]) -> list[Layer]:
    """Returns the layers of a file: those of its base, then its own."""
    ships = path in find_shipped().values()
    source = path.stem if ships else str(path)
    if path.stat().st_size > _LONGEST_BYTES:  # YAML is read slowly, and no recipe is so long
        raise RecipeError(f"{source}: this file is longer than any recipe; data go into data.train")
    try:
        tree = yaml12.parse(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise RecipeError(f"{source}: byte {error.start + 1} is not UTF-8; save the recipe as UTF-8") from None
    except (ValueError, OSError) as error:
        raise RecipeError(f"{source}: {error}") from None
    if tree is None:
        raise RecipeError(
            f"{source}: this file is empty; begin with base: and the name of a recipe, and say what differs"
        )
    if not isinstance(tree, dict):
        raise RecipeError(f"{source}: a recipe is a mapping of options, but this file holds {format_value(tree)}")
    base = tree.pop("base", None)
    _find_first_recipe(tree, path.parent)
    layer = Layer(source, tree, ships=ships)
    if base is None:
        return [layer]
    if not isinstance(base, str):
        raise RecipeError(f"{source}: base must name one recipe, but is {format_value(base)}")
    above = (*above, path.resolve())
    base_path = find_recipe(base, path.parent, f"{source}: base: ")
    if base_path.resolve() in above:
        raise RecipeError(f"{source}: base: {base} leads back to itself")
    if len(above) > _MOST_BASES:
        raise RecipeError(f"{source}: base: {base} is the base of a base more than {_MOST_BASES} times; join some")
    return [*read_layers(base_path, above), layer]


def _find_first_recipe(tree: dict[str, Any], folder: Path) -> None:
    """Makes `model.from_recipe` in a recipe's tree the path of a file in the recipe's folder, if there is one.

    Otherwise it stays what it is: the name of a recipe, or a path relative to the working directory.
    """
    model = tree.get("model")
    named = model.get("from_recipe") if isinstance(model, dict) else None
    if not isinstance(named, str) or folder == Path():
        return
    meant = os.path.normpath(folder / named)
    if named.endswith((".yaml", ".yml")) and os.path.isfile(meant):
        tree["model"]["from_recipe"] = meant
