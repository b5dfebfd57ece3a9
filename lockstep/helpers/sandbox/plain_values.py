"""Plain values as JSON and back: all that a program under test and its test may hand to each other.

Runs inside of jails, with the standard library alone. A whole number, a text, None and a boolean are themselves;
anything else is a list that begins with its kind. A value that is not plain stays where it is: the other side gets a
reference, whose meaning the two sides agree on.
"""

from __future__ import annotations

import sys
from _json import encode_basestring_ascii, make_encoder, make_scanner

TYPE_CHECKING = False  # importing `typing` and `collections` would take as long as all else
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Refer = Callable[[Any], list[Any]]
    Resolve = Callable[[list[Any]], Any]

_LARGE = 1 << 64  # numbers from here on are written in base 16, which takes time in proportion to their length
_SERIES = (list, tuple, set, frozenset)
_TABLES = ("OrderedDict", "defaultdict", "Counter")  # of `collections`


class _Reading:
    """JSON as `json.loads` reads it. Its package, with `re` and `enum`, takes longer to import than Python to start."""

    strict, object_hook, object_pairs_hook = True, None, None
    parse_float, parse_int, parse_constant = float, int, float
    memo: dict[str, str] = {}  # noqa: RUF012


_SCAN = make_scanner(_Reading())  # pyright: ignore[reportArgumentType]
_WRITE = make_encoder(None, repr, encode_basestring_ascii, None, ":", ",", False, False, True)


def loads(line: bytes) -> Any:
    """Reads a line of JSON.

    Raises:
        NoPlainValue: It is none.
    """
    try:
        value, end = _SCAN(line.decode(), 0)
    except (ValueError, StopIteration, RecursionError):
        raise NoPlainValue("is no JSON") from None
    if line[end:].strip():
        raise NoPlainValue("is more than JSON")
    return value


def dumps(value: Any) -> bytes:
    """Writes a line of JSON."""
    return "".join(_WRITE(value, 0)).encode() + b"\n"


class NoPlainValue(Exception):
    """A value, or a message, from which no plain value can be built; the text says why."""


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
    if value is None or kind is bool or kind is str:
        return value
    if kind is int:
        return value if -_LARGE < value < _LARGE else ["int", hex(value)]
    if kind is float:
        return ["float", value.hex()]
    if kind is complex:
        return ["complex", [value.real.hex(), value.imag.hex()]]
    if kind in (bytes, bytearray):
        return [kind.__name__, value.hex()]
    if kind in _SERIES:
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
    except (TypeError, ValueError, KeyError, IndexError, OverflowError, RecursionError) as error:
        raise NoPlainValue(f"cannot be read ({type(error).__name__})") from None


def _decode(item: Any, resolve: Resolve) -> Any:
    if item is None or type(item) in (bool, int, str):
        return item
    if type(item) is not list:
        raise NoPlainValue("is no plain value")
    if item[0] not in _READERS:
        return resolve(item)
    kind, content = item
    return _READERS[kind](content, resolve)


def _decode_series(kind: type) -> Callable[[Any, Resolve], Any]:
    return lambda content, resolve: kind([_decode(item, resolve) for item in _list(content)])


def _decode_table(content: Any, resolve: Resolve) -> dict[Any, Any]:
    return {_decode(key, resolve): _decode(held, resolve) for key, held in _list(content)}


def _list(content: Any) -> list[Any]:
    if type(content) is not list:
        raise NoPlainValue("is no list")
    return content


_READERS: dict[str, Callable[[Any, Resolve], Any]] = {
    "int": lambda content, resolve: int(content, 16),
    "float": lambda content, resolve: float.fromhex(content),
    "complex": lambda content, resolve: complex(*map(float.fromhex, content)),
    "bytes": lambda content, resolve: bytes.fromhex(content),
    "bytearray": lambda content, resolve: bytearray.fromhex(content),
    "dict": _decode_table,
    **{kind.__name__: _decode_series(kind) for kind in _SERIES},
}


def base_of(value: Any) -> Any:
    """The plain value within one of a class of its own that is derived from a plain one, such as a named tuple.

    Raises:
        NoPlainValue: There is none.
    """
    for kind in (bool, int, float, complex, str, bytes, bytearray, list, tuple, set, frozenset, dict):
        if issubclass(type(value), kind):
            copy = {bool: bool, int: int.__int__, float: float.__float__, str: str.__str__}.get(kind, kind)
            return copy(value)
    raise NoPlainValue(f"is a {type(value).__name__}, which has no plain value")


def allow_large_numbers() -> None:
    """Lets numbers of any length be written in base 10, as far as the limit on CPU time goes."""
    sys.set_int_max_str_digits(0)
