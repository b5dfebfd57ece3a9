"""Functions of other libraries, imported from files of their checkouts: only files that hold
formulas are executed.

A file imports much that a formula does not use: engines, clusters, loggers. Executing all that
would need each library's own environment and GPUs, so what it imports from the packages that are
named beforehand, its own other files included, is a stand-in: it can be a base class, an annotation
or a decorator that changes nothing. It has no arithmetic: a formula that used one would end in an
error, not in a number. `torch`, `numpy`, `pydantic` are real.
"""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any


class _Nothing:
    """What calling a stand-in returns: false, a decorator that changes nothing, an object whose
    methods do nothing.
    """

    def __bool__(self) -> bool:
        return False

    def __call__(self, *args: Any, **options: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) else self

    def __getattr__(self, name: str) -> _Nothing:
        if name.startswith("__"):
            raise AttributeError(name)
        return self


class _StandInType(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return stand_in(name)

    def __getitem__(cls, key: Any) -> Any:
        return cls

    def __call__(cls, *args: Any, **options: Any) -> Any:
        if "is_stand_in" in cls.__dict__:
            return _Nothing()(*args, **options)
        return super().__call__(*args, **options)


def stand_in(name: str) -> type:
    """A class for a name of a package that is not executed."""
    return _StandInType(name, (), {"is_stand_in": True})


class _StandInModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = stand_in(name)
        setattr(self, name, made)
        return made


class _StandInLoader(Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandInModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__path__ = []


class Files(MetaPathFinder):
    """The files of one library; importing them changes this process for good, so each library has
    its own.

    Attributes:
        root: The checkout.
    """

    def __init__(self, root: Path, real: dict[str, str], absent: Sequence[str]) -> None:
        """Prepares imports.

        Args:
            root: The checkout.
            real: Modules that are executed, with their files.
            absent: Packages for which there are stand-ins, apart from `real`.

        Raises:
            FileNotFoundError: A file is not in the checkout.
        """
        for file in real.values():
            if not (root / file).is_file():
                raise FileNotFoundError(
                    f"there is no {file} in {root}; check out the commit that --help names"
                )
        self.root, self._real, self._absent = root, real, tuple(absent)
        sys.meta_path.insert(0, self)

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname in self._real:
            return spec_from_file_location(fullname, self.root / self._real[fullname])
        if fullname.split(".")[0] not in self._absent:
            return None
        return ModuleSpec(fullname, _StandInLoader(), is_package=True)

    def load(self, module: str) -> Any:
        """Executes a file."""
        return importlib.import_module(module)

    def at(self, module: str, function: str) -> str:
        """`file:line` of a function, or of a method `Class.method`."""
        file = self._real[module]
        found: Any = ast.parse((self.root / file).read_text())
        for name in function.split("."):
            found = next(node for node in found.body if _name(node) == name)
        return f"{file}:{found.lineno}"

    def where(self, file: str, text: str) -> str:
        """`file:line` of the first line with `text`, in a file that is not executed."""
        lines = (self.root / file).read_text().splitlines()
        return f"{file}:{next(number for number, line in enumerate(lines, 1) if text in line)}"

    def commit(self) -> str:
        """The commit that is checked out."""
        command = ["git", "-C", str(self.root), "rev-parse", "HEAD"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout.strip() or "unknown"


def _name(node: ast.AST) -> str | None:
    return (
        node.name
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        else None
    )


def bind(cls: type, **attributes: Any) -> Any:
    """An object of a class whose constructor is not run, with the attributes that its methods
    read.
    """
    made = object.__new__(cls)
    for name, value in attributes.items():
        setattr(made, name, value)
    return made
