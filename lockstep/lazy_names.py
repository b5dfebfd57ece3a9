"""Packages whose names are imported on first use, so that importing them is quick. Imports nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module


def export_lazily(package: str, places: Mapping[str, Sequence[str]]) -> Callable[[str], object]:
    """Returns the `__getattr__` of a package.

    Args:
        package: Its name, for messages.
        places: Names that the package exports, by the module that defines them.
    """
    modules = {name: module for module, names in places.items() for name in names}

    def find(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}; it has {', '.join(sorted(modules))}")
        return vars(import_module(modules[name]))[name]

    return find
