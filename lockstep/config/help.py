"""Help on the options of a recipe: value, kind, range, default, meaning. Imports no torch."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import takewhile
from typing import Any

from lockstep.config import Section
from lockstep.config.errors import RecipeError, Shape, format_value, nearest
from lockstep.config.loading import Loaded
from lockstep.system.yaml12 import Keys, value_at

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
    wanted = [tuple(key.split(".")) for key in keys] or [()]
    entries: dict[Keys, str] = {}
    for want in wanted:
        found = {path: (holder, inner) for path, holder, inner in recipe.walk() if path[: len(want)] == want}
        if not found:
            raise RecipeError(f"there is no option {'.'.join(want)}; {nearest(recipe, want)}")
        entries |= {path: _entry(loaded, path, *own) for path, own in found.items()}
    return "\n".join(entries.values())


def _entry(loaded: Loaded, keys: Keys, holder: type[Section], inner: Shape | None) -> str:
    schema, key = _schema(holder), ".".join(keys)
    field = schema["properties"][keys[-1]]
    meaning = field.get("description") or (inner.kind.__doc__ if inner is not None else "")
    value = value_at(loaded.dump(), keys)
    if isinstance(value, dict):
        return f"{key}:\n    {meaning}\n"
    default = "required" if keys[-1] in schema.get("required", ()) else f"default {_format_entry(field.get('default'))}"
    now = f"{_format_entry(value)} ({loaded.origin(keys)})"
    return f"{key} = {now}\n    {describe_kind(field)}; {default}\n    {meaning}\n"


def _format_entry(value: Any) -> str:
    """A value as one would write it, unless it is a list of groups."""
    nested = isinstance(value, list) and any(isinstance(item, dict) for item in value)
    return format_value(value) if nested else json.dumps(value, ensure_ascii=False)


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
