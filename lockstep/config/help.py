"""Help on the options of a recipe: value and meaning. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from lockstep.config.errors import RecipeError, Shape, nearest
from lockstep.config.loading import Loaded
from lockstep.config.section import Section
from lockstep.system.yaml12 import Keys, annotate, lay_over, nest, value_at


def headline(recipe: str) -> str:
    """The first sentence of the comment that a recipe begins with."""
    comment = takewhile(lambda line: line.startswith("#"), recipe.splitlines())
    return re.split(
        r"(?<=\.) (?=[A-Z]|lockstep )", " ".join(line.lstrip("# ") for line in comment), maxsplit=1
    )[0]


def explain_options(loaded: Loaded, keys: Sequence[str] = ()) -> str:
    """The options with these keys and all options of the sections with these keys, each with its
    meaning; else all.

    Options of a section that is null have their defaults.

    Raises:
        RecipeError: If there is no such option; names the nearest.
    """
    recipe = Shape(type(loaded.recipe), loaded.dump())
    options = list(recipe.walk())
    found: list[tuple[Keys, type[Section], Shape | None]] = []
    for want in [tuple(key.split(".")) for key in keys] or [()]:
        own = [option for option in options if option[0][: len(want)] == want]
        if not own:
            raise RecipeError(f"there is no option {'.'.join(want)}; {nearest(recipe, want)}")
        found += own
    tree: dict[str, Any] = {}
    meanings: dict[Keys, str] = {}
    for path, holder, inner in found:
        field = holder.model_fields[path[-1]]
        meanings[path] = field.description or ""
        if inner is not None and not field.description:
            meanings[path] = (inner.kind.__doc__ or "").partition("\n")[0]
        if inner is not None and list(inner.inner()):
            continue
        value = value_at(recipe.said, path)
        if value_at(recipe.said, path[:-1]) is None and not field.is_required():
            value = field.get_default(call_default_factory=True)
        tree = lay_over(tree, nest(".".join(path), value))
    return annotate(tree, lambda keys: meanings.get(keys, ""))
