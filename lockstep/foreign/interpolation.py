"""Fills in what OmegaConf interpolates: `${a.b}`, `${.sibling}`, and a few functions."""

from __future__ import annotations

import re
from collections.abc import Mapping

from lockstep import yaml12
from lockstep.foreign.words import Json

_INNERMOST = re.compile(r"\$\{([^${}]*)\}")
_DEEPEST = 30


def fill_in(given: Mapping[str, Json]) -> dict[str, Json]:
    """Replaces interpolations in all values; those that cannot be followed stay as they are."""
    return {key: _fill(key, value, given, 0) for key, value in given.items()}


def is_open(value: Json) -> bool:
    """True if a value still has an interpolation in it."""
    return isinstance(value, str) and "${" in value


def _fill(key: str, value: Json, given: Mapping[str, Json], depth: int) -> Json:
    if not isinstance(value, str) or "${" not in value or depth > _DEEPEST:
        return value
    whole = _INNERMOST.fullmatch(value)
    if whole is not None:
        found = _resolve(key, whole[1], given)
        return value if found is None else _fill(key, found, given, depth + 1)
    filled = _INNERMOST.sub(lambda match: _text(key, match, given), value)
    return value if filled == value else _fill(key, filled, given, depth + 1)


def _text(key: str, match: re.Match[str], given: Mapping[str, Json]) -> str:
    found = _resolve(key, match[1], given)
    return match[0] if found is None else str(found)


def _resolve(key: str, inside: str, given: Mapping[str, Json]) -> Json:
    """The value that an interpolation stands for; None where it cannot be followed."""
    name, colon, arguments = inside.partition(":")
    if not colon:
        return given.get(_absolute(key, inside.strip()))
    parts = [part.strip() for part in arguments.split(",")]
    if name == "oc.select":
        found = given.get(_absolute(key, parts[0]))
        return found if found is not None or len(parts) < 2 else yaml12.parse(parts[1])
    numbers = [_number(part) for part in parts]
    if len(numbers) != 2:
        return None
    left, right = numbers
    if left is None or right is None:
        return None
    match name:
        case "add":
            return left + right
        case "mul":
            return left * right
        case "max":
            return max(left, right)
        case "div" if right:
            return left / right
        case _:
            return None


def _number(text: str) -> int | float | None:
    value = yaml12.parse(text)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _absolute(key: str, reference: str) -> str:
    """A reference that begins with dots is relative to the section of its key."""
    dots = len(reference) - len(reference.lstrip("."))
    if not dots:
        return reference
    section = key.split(".")[:-dots]
    return ".".join([*section, reference.lstrip(".")])
