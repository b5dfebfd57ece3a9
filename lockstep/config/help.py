"""Help on the options of a recipe: values and descriptions. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from lockstep.config.errors import RecipeError, RecipeShape, suggest_option
from lockstep.config.loading import LoadedRecipe
from lockstep.config.section import Section
from lockstep.system.yaml12 import YAMLKeys, annotate_yaml, find_value, merge_over, nest_value


def read_headline(recipe: str) -> str:
    """The first sentence of the comment at the top of a recipe."""
    comment = takewhile(lambda line: line.startswith("#"), recipe.splitlines())
    return re.split(
        r"(?<=\.) (?=[A-Z]|lockstep )", " ".join(line.lstrip("# ") for line in comment), maxsplit=1
    )[0]


def explain_options(loaded: LoadedRecipe, keys: Sequence[str] = ()) -> str:
    """Describes the options with these keys, or in sections with these keys; all without keys.

    Options of a null section have their defaults.

    Raises:
        RecipeError: Unknown option; names the nearest.
    """
    recipe = RecipeShape(type(loaded.recipe), loaded.dump_options())
    options = list(recipe.walk_options())
    found: list[tuple[YAMLKeys, type[Section], RecipeShape | None]] = []
    for want in [tuple(key.split(".")) for key in keys] or [()]:
        own = [option for option in options if option[0][: len(want)] == want]
        if not own:
            raise RecipeError(f"unknown option {'.'.join(want)}; {suggest_option(recipe, want)}")
        found += own
    tree: dict[str, Any] = {}
    meanings: dict[YAMLKeys, str] = {}
    for path, holder, inner in found:
        field = holder.model_fields[path[-1]]
        meanings[path] = field.description or ""
        if inner is not None and not field.description:
            meanings[path] = (inner.kind.__doc__ or "").partition("\n")[0]
        if inner is not None and list(inner.iterate_options()):
            continue
        value = find_value(recipe.value, path)
        if find_value(recipe.value, path[:-1]) is None and not field.is_required():
            value = field.get_default(call_default_factory=True)
        tree = merge_over(tree, nest_value(".".join(path), value))
    return annotate_yaml(tree, lambda keys: meanings.get(keys, ""))
