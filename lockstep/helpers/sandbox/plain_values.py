"""Plain values as JSON and back: all that a program under test and its test may hand to each other.

Runs inside of jails, with the standard library alone. A whole number, a text, None and a boolean
are themselves; anything else is a list that begins with its kind. A value that is not plain stays
where it is: the other side gets a reference, whose meaning the two sides agree on.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Refer = Callable[[Any], list[Any]]
Resolve = Callable[[list[Any]], Any]

_SERIES = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
_WRITTEN = {
    "float": float,
    "complex": complex,
    "bytes": bytes.fromhex,
    "bytearray": bytearray.fromhex,
}
_TABLES = ("OrderedDict", "defaultdict", "Counter")  # of `collections`


class NoPlainValue(Exception):
    """A value, or a message, from which no plain value can be built."""


def loads(line: bytes) -> Any:
    """Reads a line of JSON.

    Raises:
        NoPlainValue: It is not JSON.
    """
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        raise NoPlainValue from None


def dumps(value: Any) -> bytes:
    """Writes a line of JSON."""
    return json.dumps(value).encode() + b"\n"


def encode(value: Any, refer: Refer) -> Any:
    """Writes a value as something that `dumps` takes.

    Args:
        value: The value.
        refer: Makes a reference, a list that begins with its kind, to what is not plain.

    Raises:
        RecursionError: It is nested too deeply, or holds itself.
    """
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind in (float, complex):
        return [kind.__name__, repr(value)]
    if kind in (bytes, bytearray):
        return [kind.__name__, value.hex()]
    if kind in _SERIES.values():
        return [kind.__name__, [encode(item, refer) for item in value]]
    if kind is dict or (kind.__module__ == "collections" and kind.__name__ in _TABLES):
        return ["dict", [[encode(key, refer), encode(held, refer)] for key, held in value.items()]]
    return refer(value)


def decode(item: Any, resolve: Resolve) -> Any:
    """Rebuilds a value from what `encode` wrote, or an attacker in its place.

    Args:
        item: What was written.
        resolve: Finds what a reference means; raises `NoPlainValue` for nonsense.

    Raises:
        NoPlainValue, TypeError, ValueError, OverflowError, RecursionError: It is nothing that
        `encode` writes.
    """
    if item is None or type(item) in (bool, int, str):
        return item
    match item:
        case [str(kind), str(text)] if kind in _WRITTEN:
            return _WRITTEN[kind](text)
        case [str(kind), list(items)] if kind in _SERIES:
            return _SERIES[kind]([decode(one, resolve) for one in items])
        case ["dict", list(pairs)]:
            return {decode(key, resolve): decode(held, resolve) for key, held in pairs}
        case list():
            return resolve(item)
        case _:
            raise NoPlainValue


def base_of(value: Any) -> Any:
    """The plain value within one of a class of its own that is derived from a plain one, such as a
    named tuple.

    Raises:
        NoPlainValue: There is none.
    """
    for kind in (int, float, complex, str, bytes, bytearray, list, tuple, set, frozenset, dict):
        if issubclass(type(value), kind):
            if kind is str:
                return str.__str__(value)
            return kind(value)
    raise NoPlainValue
