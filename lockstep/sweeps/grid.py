"""The grid of a sweep: options with several values each, and every combination of them. Imports no torch."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from lockstep.core.errors import InputError, shorten
from lockstep.system import yaml12

_RANGE = re.compile(r"(?P<first>-?\d+)\.\.(?P<last>-?\d+)")
_MOST_RUNS = 10_000
_LONGEST_NAME = 120


@dataclass(frozen=True)
class Axis:
    """An option and the values that it takes.

    Attributes:
        key: The option, such as ppo.clip.
        values: Its values.
    """

    key: str
    values: Sequence[Any]


@dataclass(frozen=True)
class Combination:
    """One value of each axis.

    Attributes:
        name: Name of its run's folder, made of its values.
        values: The values, by option.
        overrides: The same as words of a command.
    """

    name: str
    values: Mapping[str, Any]
    overrides: tuple[str, ...]


def split_words(words: Sequence[str]) -> tuple[list[str], list[Axis]]:
    """Splits a command's overrides into those with one value, as they are, and those with several.

    `key=0..4` are whole numbers, both ends included; `key=a,b` is a list of YAML. Brackets, braces and quotes hold one
    value together.

    Raises:
        InputError: A range runs backward, or a list names a value twice.
    """
    fixed, axes = list[str](), list[Axis]()
    for word in words:
        key, _, text = word.partition("=")
        values = _expand_range(key, text) or _split_list(text)
        if len(values) > 1:
            axes.append(make_axis(key, values))
        else:
            fixed.append(word)
    return fixed, axes


def make_axis(key: str, values: Sequence[Any]) -> Axis:
    """An axis of values; raises InputError if there is none, or one is there twice."""
    if not values:
        raise InputError(f"{key} has no values; give it at least one")
    texts = [_spell(value) for value in values]
    for text in texts:
        if texts.count(text) > 1:
            raise InputError(f"{key}: {shorten(text)} is there twice; name each value once")
    return Axis(key, values)


def combine(axes: Sequence[Axis]) -> list[Combination]:
    """Every combination of the axes' values; the last axis varies fastest.

    Raises:
        InputError: There is no option, one is there twice, or there are too many runs.
    """
    if not axes:
        raise InputError(
            "a sweep needs an option with several values, such as seed=0..4; for a single run there is lockstep train"
        )
    keys = [axis.key for axis in axes]
    for key in keys:
        if keys.count(key) > 1:
            raise InputError(f"{key} has values twice; name them together, as in {key}=1,2")
    number = prod(len(axis.values) for axis in axes)
    if number > _MOST_RUNS:
        raise InputError(f"these are {number:,} runs, and a sweep has at most {_MOST_RUNS:,}; name fewer values")
    return list(_name_all(axes))


def _name_all(axes: Sequence[Axis]) -> Iterator[Combination]:
    keys = [axis.key for axis in axes]
    for chosen in product(*(axis.values for axis in axes)):
        values = dict(zip(keys, chosen, strict=True))
        overrides = tuple(f"{key}={_spell(value)}" for key, value in values.items())
        yield Combination(_name(overrides), values, overrides)


def _spell(value: Any) -> str:
    """A value as a word of a command has it."""
    is_plain = isinstance(value, str) and yaml12.parse_or_text(value) == value
    return value if is_plain else json.dumps(value, ensure_ascii=False)


def _name(overrides: Sequence[str]) -> str:
    """The name of a combination's folder: its overrides, with a digest of them where the name cannot spell them.

    It depends on nothing else, so it stays as more values join a sweep.
    """
    pairs = [override.partition("=") for override in overrides]
    name = "_".join(f"{key}={_clean(text)}" for key, _, text in pairs)
    if name == "_".join(overrides) and len(name) <= _LONGEST_NAME:
        return name
    return f"{name[:_LONGEST_NAME]}-{hashlib.sha256(json.dumps(overrides).encode()).hexdigest()[:10]}"


def _clean(text: str) -> str:
    """Spells a value for a folder's name: letters, digits, and characters without a meaning for shells."""
    return re.sub(r"^-+(?=[^\d.])|-+$", "", re.sub(r"[^\w.+-]+", "-", text)) or "empty"


def _expand_range(key: str, text: str) -> list[int]:
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        return []
    first, last = int(match["first"]), int(match["last"])
    if last <= first:
        raise InputError(f"{key}={text}: the range ends where it begins or before; write {key}={last}..{first + 1}")
    if last - first >= _MOST_RUNS:
        raise InputError(f"{key}={text} has more than {_MOST_RUNS:,} values; name fewer")
    return list(range(first, last + 1))


def _split_list(text: str) -> list[Any]:
    """The values between commas; none where that is no list of YAML, and the text is one value."""
    try:
        return yaml12.parse(f"[{text}]")
    except ValueError:
        return []
