"""Fills in what OmegaConf interpolates: `${a.b}`, `${.sibling}`, and a few functions."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lockstep import yaml12
from lockstep.errors import InputError
from lockstep.foreign.words import Json

_INNERMOST = re.compile(r"\$\{([^${}]*)\}")
_DEEPEST = 30
_LARGEST = 1e300
_FUNCTIONS: dict[str, Callable[[float, float], float]] = {
    "add": operator.add, "mul": operator.mul, "max": max, "div": operator.truediv,
}  # fmt: skip


@dataclass
class Filler:
    """Substitutes texts up to a total length, since a text may contain itself.

    Attributes:
        left: Characters that may still be filled in, of one file.
    """

    left: int = 1 << 20

    def substitute(self, form: re.Pattern[str], find: Callable[[re.Match[str]], str], text: str) -> str:
        """Replaces all matches.

        Raises:
            InputError: The texts that are filled in are too long together.
        """

        def replace(match: re.Match[str]) -> str:
            found = find(match)
            self.left -= len(found)
            if self.left < 0:
                raise InputError("its variables fill in more than a million characters; does one hold itself?")
            return found

        return form.sub(replace, text)


def fill_in(given: Mapping[str, Json]) -> dict[str, Json]:
    """Replaces interpolations in all values; those that cannot be followed stay as they are.

    Raises:
        InputError: The texts that are filled in are too long together.
    """
    filler = Filler()
    return {key: _fill(key, value, given, filler) for key, value in given.items()}


def is_open(value: Json) -> bool:
    """True if a value still has an interpolation in it."""
    return isinstance(value, str) and "${" in value


def _fill(key: str, value: Json, given: Mapping[str, Json], filler: Filler) -> Json:
    for _ in range(_DEEPEST):
        if not isinstance(value, str) or "${" not in value:
            return value
        whole = _INNERMOST.fullmatch(value)
        if whole is not None:
            found = _resolve(key, whole[1], given)
            if found is None and _is_null(key, whole[1], given):
                return None
            filled = value if found is None else found
        else:
            filled = filler.substitute(_INNERMOST, lambda match: _text(key, match, given), value)
        if filled == value:
            return value
        value = filled
    return value


def _is_null(key: str, inside: str, given: Mapping[str, Json]) -> bool:
    """True if an interpolation stands for a key that is there, and null."""
    name = _absolute(key, inside.strip())
    return name in given and given[name] is None


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
        return found if found is not None or len(parts) < 2 else parse_value(parts[1])
    if name not in _FUNCTIONS or len(parts) != 2:
        return None
    left, right = _number(parts[0]), _number(parts[1])
    return None if left is None or right is None else _calculate(name, left, right)


def _calculate(name: str, left: float, right: float) -> float | None:
    """The value of a function; None where it has none."""
    try:
        value = _FUNCTIONS[name](left, right)
    except ArithmeticError:
        return None
    return value if abs(value) < _LARGEST else None


def parse_value(text: str) -> Json:
    """A value as YAML reads it; text where it is no YAML."""
    try:
        return yaml12.parse(text)
    except ValueError:
        return text


def _number(text: str) -> int | float | None:
    value = parse_value(text)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _absolute(key: str, reference: str) -> str:
    """A reference that begins with dots is relative to the section of its key."""
    dots = len(reference) - len(reference.lstrip("."))
    if not dots:
        return reference
    section = key.split(".")[:-dots]
    return ".".join([*section, reference.lstrip(".")])
