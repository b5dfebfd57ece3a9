"""Packages whose names are imported on first use, so that importing a package is fast.

Imports no Lockstep module.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path


def export_lazily(package: str, file: str) -> Callable[[str], object]:
    """Returns a `__getattr__` that imports the names that a package lists under `if TYPE_CHECKING`.

    Args:
        package: Its name, for messages.
        file: The package's `__file__`.
    """

    @cache
    def read_places() -> dict[str, str]:
        """The defining module of each name."""
        places: dict[str, str] = {}
        for branch in ast.parse(Path(file).read_bytes()).body:
            for node in branch.body if isinstance(branch, ast.If) else ():
                if isinstance(node, ast.ImportFrom):
                    places |= dict.fromkeys((one.name for one in node.names), str(node.module))
        return places

    def find_export(name: str) -> object:
        modules = read_places()
        if name not in modules:
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}; it has {', '.join(sorted(modules))}"
            )
        return vars(import_module(modules[name]))[name]

    return find_export
