"""Validation of a recipe's tree: finds all errors, and drops conflicting options of a base.

Imports no torch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from lockstep.config.errors import KeyPath, RecipeShape, describe_problems
from lockstep.config.section import BrokenRules, Section
from lockstep.system import yaml12

S = TypeVar("S", bound=Section)
OptionFault = tuple[KeyPath, str]
"""Keys of an option or a section, and the sentence about it."""


@dataclass(frozen=True)
class FaultyTree(Exception):
    """A tree that is not a valid section.

    Attributes:
        faults: All errors in it.
    """

    faults: tuple[OptionFault, ...]


def validate_tree(kind: type[S], tree: dict[str, Any]) -> S:
    """Validates as JSON and strictly: a list may stand for a tuple, but text not for a number.

    Raises:
        FaultyTree: Values of the wrong type, missing or unknown options, and all broken rules.
    """
    try:
        return kind.model_validate_json(json.dumps(tree), strict=True)
    except ValidationError as error:
        problems = error.errors(include_url=False)
    shape = RecipeShape(kind, tree)
    found: dict[OptionFault, None] = {}
    for part in (problems, _find_broken_rules(shape)):
        for path, text in describe_problems(part, shape):
            found[tuple(path), text] = None
    raise FaultyTree(tuple(found))


def _find_broken_rules(shape: RecipeShape, path: tuple[str, ...] = ()) -> Iterator[ErrorDetails]:
    """Yields the broken rules of a tree's sections; validates each separately, inner ones first."""
    for name, inner in shape.iterate_options():
        if inner is not None and isinstance(inner.value, dict):
            yield from _find_broken_rules(inner, (*path, name))
    if shape.is_named:
        return
    broken = BrokenRules()
    try:
        section = shape.kind.model_validate_json(
            json.dumps(shape.value), strict=True, context=broken
        )
    except (
        ValidationError,
        TypeError,
    ):  # errors of single values are found elsewhere; TypeError: a task without its class
        return
    for of, text in broken.found:
        if of is section:
            yield {"type": "value_error", "loc": path, "msg": text, "input": shape.value}


def drop_conflicting_options(
    kind: type[S],
    tree: dict[str, Any],
    faults: Collection[OptionFault],
    from_base: Collection[yaml12.YAMLKeys],
) -> tuple[dict[str, Any], list[yaml12.YAMLKeys]]:
    """Drops options of a base that a broken rule names, if that leaves fewer errors.

    Args:
        kind: The section.
        tree: Its options.
        faults: Its errors.
        from_base: Options that only a base sets.

    Returns:
        The remaining options, and the dropped ones.
    """
    taken: list[yaml12.YAMLKeys] = []
    for path, text in faults:
        named = [
            keys for keys in from_base if keys not in taken and _names_option(path, text, keys)
        ]
        groups = [named, *([keys] for keys in named)] if named else []
        for group in groups:
            rest = reduce(_drop_option, group, tree)
            left = tuple[OptionFault, ...]()
            try:
                validate_tree(kind, rest)
            except FaultyTree as error:
                left = error.faults
            if (path, text) not in left and set(left) < set(faults):
                tree = rest
                faults = left
                taken = [*taken, *group]
                break
    return tree, taken


def _names_option(path: KeyPath, text: str, keys: yaml12.YAMLKeys) -> bool:
    """True if a sentence about the section at `path` names an option within it."""
    above = tuple(map(str, path))
    if keys[: len(above)] != above or len(keys) == len(above):
        return False
    name = ".".join(keys[len(above) :])
    return re.search(rf"(?<![\w.]){re.escape(name)}(?![\w.]\w|\w)", text) is not None


def _drop_option(tree: dict[str, Any], keys: yaml12.YAMLKeys) -> dict[str, Any]:
    first, *rest = keys
    if not rest:
        return {key: value for key, value in tree.items() if key != first}
    return tree | {first: _drop_option(tree[first], tuple(rest))}
