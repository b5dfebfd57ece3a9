"""Recipe files: shipped ones, users' own, and the bases that they build on.

Imports no torch.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from lockstep.config.errors import RecipeError, format_value
from lockstep.system import yaml12
from lockstep.system.paths import expand_path

_LARGEST_BYTES = 1 << 20
"""Largest recipe file: YAML is slow to read, and no recipe is this long."""


@dataclass(frozen=True)
class RecipeLayer:
    """Options from one source: a recipe file, an override, a command or a program.

    Attributes:
        source: Name of the source, for messages.
        tree: The options.
        ships: Whether the recipe ships with Lockstep.
    """

    source: str
    tree: dict[str, Any]
    ships: bool = False


@cache
def find_shipped() -> dict[str, Path]:
    """The shipped recipes, by name, from the folders of the algorithms and commands."""
    paths: list[Path] = []
    for package in ("lockstep", "lockstep_doctor"):
        paths += Path(str(files(package))).rglob("recipes/*.yaml")
    return {path.stem: path for path in sorted(paths, key=lambda path: path.stem)}


def find_recipe(recipe: str, folder: Path | str = "", prefix: str = "") -> Path:
    """The file of a recipe; a path is relative to `folder`, and errors begin with `prefix`."""
    shipped = find_shipped()
    if recipe in shipped:
        return shipped[recipe]
    path = Path(folder, expand_path(recipe))
    if path.is_file() and path.suffix in (".yaml", ".yml"):
        return path
    close = get_close_matches(recipe.lower(), shipped, 1)
    hint = f"did you mean {close[0]}? " if close else ""
    raise RecipeError(
        f"{prefix}recipe {recipe} not found; {hint}use a name that `lockstep config` lists, or a "
        "YAML file, such as a run's recipe.yaml"
    )


def read_layers(path: Path) -> list[RecipeLayer]:
    """Returns the layers of a file: the layers of its base, then its own."""
    layers: list[RecipeLayer] = []
    read: set[Path] = set()
    while True:
        layer = _read_layer(path)
        layers.insert(0, layer)
        base = layer.tree.pop("base", None)
        if base is None:
            return layers
        if not isinstance(base, str):
            raise RecipeError(
                f"{layer.source}: base must name one recipe, but is {format_value(base)}"
            )
        read.add(path.resolve())
        path = find_recipe(base, path.parent, f"{layer.source}: base: ")
        if path.resolve() in read:
            raise RecipeError(f"{layer.source}: base: {base} is circular")


def _read_layer(path: Path) -> RecipeLayer:
    """Reads one file, `base` included."""
    ships = path in find_shipped().values()
    source = path.stem if ships else str(path)
    if path.stat().st_size > _LARGEST_BYTES:
        raise RecipeError(f"{source}: this file is too large for a recipe; data go into data.train")
    try:
        tree = yaml12.parse_yaml(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise RecipeError(
            f"{source}: byte {error.start + 1} is invalid UTF-8; save the recipe as UTF-8"
        ) from None
    except (ValueError, OSError) as error:
        raise RecipeError(f"{source}: {error}") from None
    if not isinstance(tree, dict):
        hint = "; data files go into data.train" if isinstance(tree, list) else ""
        raise RecipeError(
            f"{source}: a recipe must be a mapping of options, but this file is "
            f"{format_value(tree)}{hint}"
        )
    _find_first_recipe(tree, path.parent)
    return RecipeLayer(source, tree, ships=ships)


def _find_first_recipe(tree: dict[str, Any], folder: Path) -> None:
    """Resolves `model.from_recipe` in a tree to a file in the recipe's folder, if one exists.

    Otherwise it stays as written: the name of a recipe, or a path relative to the working
    directory.
    """
    model = tree.get("model")
    named = model.get("from_recipe") if isinstance(model, dict) else None
    if not isinstance(named, str) or folder == Path():
        return
    meant = os.path.normpath(folder / named)
    if named.endswith((".yaml", ".yml")) and os.path.isfile(meant):
        tree["model"]["from_recipe"] = meant
