"""Plain values as JSON and back: all that a program under test and its test may hand to each other.

Runs inside of jails, with the standard library alone. A whole number, a text, None and a boolean are themselves;
anything else is a list that begins with its kind. A value that is not plain stays where it is: the other side gets a
reference, whose meaning the two sides agree on.
"""

from __future__ import annotations

from _json import encode_basestring_ascii, make_encoder, make_scanner

TYPE_CHECKING = False  # importing `typing` and `collections` would take as long as all else
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Refer = Callable[[Any], list[Any]]
    Resolve = Callable[[list[Any]], Any]

_SERIES = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
_WRITTEN = {"float": float, "complex": complex, "bytes": bytes.fromhex, "bytearray": bytearray.fromhex}
_TABLES = ("OrderedDict", "defaultdict", "Counter")  # of `collections`


class _Reading:
    """JSON as `json.loads` reads it. Its package, with `re` and `enum`, takes longer to import than Python to start."""

    strict, object_hook, object_pairs_hook = True, None, None
    parse_float, parse_int, parse_constant = float, int, float
    memo: dict[str, str] = {}  # noqa: RUF012


_SCAN = make_scanner(_Reading())  # pyright: ignore[reportArgumentType]
_WRITE = make_encoder(None, repr, encode_basestring_ascii, None, ":", ",", False, False, True)


class NoPlainValue(Exception):
    """A value, or a message, from which no plain value can be built; the text says why."""


def loads(line: bytes) -> Any:
    """Reads a line of JSON.

    Raises:
        NoPlainValue: It is none.
    """
    try:
        text = line.decode().rstrip()
        value, end = _SCAN(text, 0)
        if end == len(text):
            return value
    except (ValueError, StopIteration, RecursionError):
        pass
    raise NoPlainValue("is no JSON")


def dumps(value: Any) -> bytes:
    """Writes a line of JSON."""
    return "".join(_WRITE(value, 0)).encode() + b"\n"


def encode(value: Any, refer: Refer) -> Any:
    """Writes a value as something that `dumps` takes.

    Args:
        value: The value.
        refer: Makes a reference, a list that begins with its kind, to what is not plain.

    Raises:
        NoPlainValue: It is nested too deeply, or holds itself.
    """
    try:
        return _encode(value, refer)
    except RecursionError:
        raise NoPlainValue("is nested too deeply") from None


def _encode(value: Any, refer: Refer) -> Any:
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind in (float, complex):
        return [kind.__name__, repr(value)]
    if kind in (bytes, bytearray):
        return [kind.__name__, value.hex()]
    if kind in _SERIES.values():
        return [kind.__name__, [_encode(item, refer) for item in value]]
    if kind is dict or (kind.__module__ == "collections" and kind.__name__ in _TABLES):
        return ["dict", [[_encode(key, refer), _encode(held, refer)] for key, held in value.items()]]
    return refer(value)


def decode(item: Any, resolve: Resolve) -> Any:
    """Rebuilds a value from what `encode` wrote, or an attacker in its place.

    Args:
        item: What was written.
        resolve: Finds what a reference means; raises `NoPlainValue` for nonsense.

    Raises:
        NoPlainValue: It is nothing that `encode` writes.
    """
    try:
        return _decode(item, resolve)
    except (TypeError, ValueError, IndexError, OverflowError, RecursionError) as error:
        raise NoPlainValue(f"cannot be read ({type(error).__name__})") from None


def _decode(item: Any, resolve: Resolve) -> Any:
    if item is None or type(item) in (bool, int, str):
        return item
    match item:
        case [str(kind), str(text)] if kind in _WRITTEN:
            return _WRITTEN[kind](text)
        case [str(kind), list(items)] if kind in _SERIES:
            return _SERIES[kind]([_decode(one, resolve) for one in items])
        case ["dict", list(pairs)]:
            return {_decode(key, resolve): _decode(held, resolve) for key, held in pairs}
        case list():
            return resolve(item)
        case _:
            raise NoPlainValue("is no plain value")


def base_of(value: Any) -> Any:
    """The plain value within one of a class of its own that is derived from a plain one, such as a named tuple.

    Raises:
        NoPlainValue: There is none.
    """
    for kind in (int, float, complex, str, bytes, bytearray, list, tuple, set, frozenset, dict):
        if issubclass(type(value), kind):
            return str.__str__(value) if kind is str else kind(value)
    raise NoPlainValue(f"is a {type(value).__name__}, which has no plain value")
