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
        branches = [
            node for node in ast.parse(Path(file).read_bytes()).body if isinstance(node, ast.If)
        ]
        imports = [
            node for branch in branches for node in branch.body if isinstance(node, ast.ImportFrom)
        ]
        return {alias.name: str(node.module) for node in imports for alias in node.names}

    def find_export(name: str) -> object:
        modules = read_places()
        if name not in modules:
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}; it has {', '.join(sorted(modules))}"
            )
        return vars(import_module(modules[name]))[name]

    return find_export
