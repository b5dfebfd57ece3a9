"""Plain values as JSON: all that a program under test and its test can exchange.

Runs inside sandboxes with only the standard library. Integers, texts, None and booleans are encoded
as themselves; anything else is a list that starts with its kind. A value that is not plain stays in
its process: the other side gets a reference, whose meaning both sides agree on.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

ReferenceEncoder = Callable[[Any], list[Any]]
ReferenceDecoder = Callable[[list[Any]], Any]

_SERIES = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
_WRITTEN = {
    "float": float,
    "complex": complex,
    "bytes": bytes.fromhex,
    "bytearray": bytearray.fromhex,
}
_TABLES = ("OrderedDict", "defaultdict", "Counter")  # from `collections`


class NoPlainValue(Exception):
    """A value or message that cannot be converted to a plain value."""


def parse_line(line: bytes) -> Any:
    """Reads a line of JSON.

    Raises:
        NoPlainValue: The line is not JSON.
    """
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        raise NoPlainValue from None


def format_line(value: Any) -> bytes:
    """Writes a line of JSON."""
    return json.dumps(value).encode() + b"\n"


def encode_value(value: Any, refer: ReferenceEncoder) -> Any:
    """Encodes a value for `format_line`.

    Args:
        value: The value.
        refer: Makes a reference, a list that starts with its kind, to a value that is not plain.

    Raises:
        RecursionError: The value is nested too deeply or contains itself.
    """
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind in (float, complex):
        return [kind.__name__, repr(value)]
    if kind in (bytes, bytearray):
        return [kind.__name__, value.hex()]
    if kind in _SERIES.values():
        return [kind.__name__, [encode_value(item, refer) for item in value]]
    if kind is dict or (kind.__module__ == "collections" and kind.__name__ in _TABLES):
        return [
            "dict",
            [[encode_value(key, refer), encode_value(held, refer)] for key, held in value.items()],
        ]
    return refer(value)


def decode_value(item: Any, resolve: ReferenceDecoder) -> Any:
    """Decodes a value from `encode_value` or from an attacker.

    Args:
        item: The encoded value.
        resolve: Resolves a reference; raises `NoPlainValue` for an invalid one.

    Raises:
        NoPlainValue, TypeError, ValueError, OverflowError, RecursionError: The value is not a
        result of `encode_value`.
    """
    if item is None or type(item) in (bool, int, str):
        return item
    match item:
        case [str(kind), str(text)] if kind in _WRITTEN:
            return _WRITTEN[kind](text)
        case [str(kind), list(items)] if kind in _SERIES:
            return _SERIES[kind]([decode_value(one, resolve) for one in items])
        case ["dict", list(pairs)]:
            return {decode_value(key, resolve): decode_value(held, resolve) for key, held in pairs}
        case list():
            return resolve(item)
        case _:
            raise NoPlainValue


def convert_to_base(value: Any) -> Any:
    """The plain value of an instance of a derived class, such as a named tuple.

    Raises:
        NoPlainValue: It has no plain value.
    """
    for kind in (int, float, complex, str, bytes, bytearray, list, tuple, set, frozenset, dict):
        if issubclass(type(value), kind):
            if kind is str:
                return str.__str__(value)
            return kind(value)
    raise NoPlainValue
