"""Help on the options of a recipe: value, kind, range, default, meaning. Imports no torch."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import takewhile
from typing import Any

from lockstep.config import Section
from lockstep.config.errors import RecipeError, Shape, format_value, nearest
from lockstep.config.loading import Loaded
from lockstep.yaml12 import Keys

_KINDS = {
    "boolean": "true or false",
    "integer": "whole number",
    "number": "number",
    "string": "text",
    "array": "list",
    "object": "mapping",
    "null": "null",
}
_LIMITS = {"exclusiveMinimum": "above", "minimum": "at least", "exclusiveMaximum": "below", "maximum": "at most"}


def headline(recipe: str) -> str:
    """The first sentence of the comment that a recipe begins with."""
    comment = takewhile(lambda line: line.startswith("#"), recipe.splitlines())
    return re.split(r"(?<=\.) (?=[A-Z]|lockstep )", " ".join(line.lstrip("# ") for line in comment), maxsplit=1)[0]


def explain_options(loaded: Loaded, keys: Sequence[str] = ()) -> str:
    """Returns help on the options with these keys and on all options of the sections with these keys; else on all.

    Raises:
        RecipeError: If there is no such option; names the nearest.
    """
    recipe = Shape(type(loaded.recipe), loaded.dump())
    every = list(_options(recipe, ()))
    wanted = [tuple(key.split(".")) for key in keys] or [()]
    for want in wanted:
        if not any(path[: len(want)] == want for path, _, _ in every):
            raise RecipeError(f"there is no option {'.'.join(want)}; {nearest(recipe, want)}")
    found = [option for option in every if any(option[0][: len(want)] == want for want in wanted)]
    return "\n".join(_entry(loaded, *option) for option in found)


def _options(shape: Shape, above: Keys) -> Iterator[tuple[Keys, type[Section], type[Section] | None]]:
    """Yields each option's keys, the section class that holds it, and the section class that it is itself, or None."""
    for name, inner in shape.inner():
        if not shape.is_named:
            yield (*above, name), shape.kind, None if inner is None else inner.kind
        if inner is not None:
            yield from _options(inner, (*above, name))


def _entry(loaded: Loaded, keys: Keys, holder: type[Section], inner: type[Section] | None) -> str:
    schema, key = _schema(holder), ".".join(keys)
    field = schema["properties"][keys[-1]]
    meaning = field.get("description") or (inner.__doc__ if inner is not None else "")
    value = _value(loaded.dump(), keys)
    if isinstance(value, dict):
        return f"{key}:\n    {meaning}\n"
    now = f" = {_format_entry(value)} ({loaded.origin(keys)})" if value is not _ABSENT else ""
    default = "required" if keys[-1] in schema.get("required", ()) else f"default {_format_entry(field.get('default'))}"
    return f"{key}{now}\n    {describe_kind(field)}; {default}\n    {meaning}\n"


_ABSENT = object()


def _format_entry(value: Any) -> str:
    """A value as one would write it, unless it is a list of groups."""
    nested = isinstance(value, list) and any(isinstance(item, dict) for item in value)
    return format_value(value) if nested else json.dumps(value, ensure_ascii=False)


def _value(tree: Any, keys: Keys) -> Any:
    """The value of an option; `_ABSENT` where its section is off."""
    for key in keys:
        if not isinstance(tree, dict) or key not in tree:
            return _ABSENT
        tree = tree[key]
    return tree


@cache
def _schema(section: type[Section]) -> dict[str, Any]:
    return section.model_json_schema()


def describe_kind(schema: Mapping[str, Any]) -> str:
    """Describes the values that an option may have, in words."""
    if "anyOf" in schema:
        return " or ".join(describe_kind(choice) for choice in schema["anyOf"])
    if "const" in schema or "enum" in schema:
        *others, last = [format_value(value) for value in schema.get("enum", [schema.get("const")])]
        return f"{', '.join(others)} or {last}" if others else last
    if "type" not in schema:
        return "group of options"
    limits = [f"{word} {schema[name]:g}" for name, word in _LIMITS.items() if name in schema]
    items = schema.get("prefixItems")
    of = f" of {len(items)}, each {describe_kind(items[0])}" if items else ""
    return f"{_KINDS[schema['type']]}{of}{' ' if limits else ''}{' and '.join(limits)}"
