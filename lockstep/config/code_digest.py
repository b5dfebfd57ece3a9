"""Digests of functions and classes that a program hands over, so that a changed function gives another run.

A digest covers the bytecode, the defaults, the values that a function closes over, and the global values, functions and
classes that its code names. Modules and other objects count by name alone. Imports nothing heavy.
"""

from __future__ import annotations

import hashlib
import inspect
import types
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any


def digest_code(found: Callable[..., Any]) -> str:
    """Returns eight hexadecimal digits of a SHA-256."""
    return hashlib.sha256("\n".join(_parts(found, set())).encode()).hexdigest()[:8]


def _parts(value: object, seen: set[int]) -> Iterator[str]:
    """Yields the texts that identify a value; a function or class that was seen before yields only its name."""
    match value:
        case None | bool() | int() | float() | complex() | str() | bytes():
            yield repr(value)
        case list() | tuple():
            yield type(value).__name__
            for item in value:
                yield from _parts(item, seen)
        case set() | frozenset():
            yield from sorted("\n".join(_parts(item, set(seen))) for item in value)
        case dict():
            for key, item in value.items():
                yield from _parts(key, seen)
                yield from _parts(item, seen)
        case types.CodeType():
            yield value.co_code.hex()
            yield " ".join(value.co_names)
            yield from _parts(value.co_consts, seen)
        case types.FunctionType() | type() if id(value) in seen:
            yield value.__qualname__
        case types.FunctionType():
            seen.add(id(value))
            yield from _parts_of_function(value, seen)
        case type():
            seen.add(id(value))
            yield from _parts_of_class(value, seen)
        case property():
            yield from _parts([value.fget, value.fset, value.fdel], seen)
        case cached_property():
            yield from _parts(value.func, seen)
        case _:
            yield type(value).__qualname__


def _parts_of_function(function: types.FunctionType, seen: set[int]) -> Iterator[str]:
    yield from _parts(function.__code__, seen)
    yield from _parts(function.__defaults__, seen)
    yield from _parts(function.__kwdefaults__, seen)
    yield from _parts(inspect.getclosurevars(function).nonlocals, seen)
    for name in sorted(_names(function.__code__)):
        if name in function.__globals__:
            yield name
            yield from _parts(function.__globals__[name], seen)


def _parts_of_class(kind: type, seen: set[int]) -> Iterator[str]:
    """Yields the name of a class and, where it is of the program, its bases, values, methods and properties."""
    yield kind.__qualname__
    if kind.__module__ != "__main__":
        return
    for base in kind.__bases__:
        yield from _parts(base, seen)
    for name, value in vars(kind).items():
        if not name.startswith("__") or inspect.isfunction(value):
            yield name
            yield from _parts(value.__func__ if isinstance(value, staticmethod | classmethod) else value, seen)


def _names(code: types.CodeType) -> set[str]:
    """All names in a function's code, nested functions and comprehensions included."""
    inner = (_names(constant) for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*inner)
