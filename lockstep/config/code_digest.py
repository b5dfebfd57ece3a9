"""Digests of functions and classes that a program passes in, so that changed code is a new run.

A digest covers the bytecode, the defaults, the closure's values, and the global values, functions
and classes that the code names. Modules and other objects count by name only. Imports nothing
heavy.
"""

from __future__ import annotations

import hashlib
import inspect
import types
from collections.abc import Callable
from functools import cached_property
from itertools import chain
from typing import Any


def digest_code(found: Callable[..., Any]) -> str:
    """Returns a digest: eight hexadecimal digits of a SHA-256."""
    return hashlib.sha256(_describe_value(found, set()).encode()).hexdigest()[:8]


def _describe_value(value: object, seen: set[int]) -> str:
    """A text that identifies a value.

    A function or class that was seen before, and an installed class, are identified by name.
    """
    parts: list[Any]
    match value:
        case None | bool() | int() | float() | complex() | str() | bytes():
            return repr(value)
        case set() | frozenset():
            return str(sorted(_describe_value(item, set(seen)) for item in value))
        case list() | tuple():
            parts = list(value)
        case dict():
            parts = list(chain.from_iterable(value.items()))
        case staticmethod() | classmethod() | property() | cached_property():
            parts = [
                getattr(value, name, None) for name in ("__func__", "fget", "fset", "fdel", "func")
            ]
        case types.CodeType():
            parts = [value.co_code, value.co_names, value.co_consts]
        case types.FunctionType() if id(value) not in seen:
            names = sorted(_list_names(value.__code__) & set(value.__globals__))
            named = {name: value.__globals__[name] for name in names}
            closed = inspect.getclosurevars(value).nonlocals
            parts = [value.__code__, value.__defaults__, value.__kwdefaults__, dict(closed), named]
        case type() if id(value) not in seen and value.__module__ == "__main__":
            own = {
                name: part
                for name, part in vars(value).items()
                if inspect.isfunction(part) or name[:2] != "__"
            }
            parts = [value.__qualname__, value.__bases__, own]
        case types.FunctionType() | type():
            return value.__qualname__
        case _:
            return type(value).__qualname__
    if isinstance(value, types.FunctionType | type):
        seen.add(id(value))
    return f"{type(value).__name__}({', '.join(_describe_value(part, seen) for part in parts)})"


def _list_names(code: types.CodeType) -> set[str]:
    """All names in a function's code, including nested functions and comprehensions."""
    inner = (
        _list_names(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)
    )
    return set(code.co_names).union(*inner)
