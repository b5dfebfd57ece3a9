"""User code that a recipe names, imported in the process that runs it.

Imports nothing heavy.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import math
import numbers
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from lockstep.config.code_digest import digest_code
from lockstep.core.errors import InputError, shorten_text
from lockstep.system.guarded_imports import find_loader


def load_object(reference: str, option: str, kind: str) -> Callable[..., Any]:
    """Loads `file.py:name` or `package.module:name`.

    Args:
        reference: The reference in the recipe.
        option: The option that holds it, for messages.
        kind: Kind of the object, `function` or `class`, for messages.

    Raises:
        InputError: The module cannot be imported, or has no function or class with that name.
    """
    place, _, name = reference.rpartition(":")
    if place == PROGRAM:
        if reference not in _OBJECTS:
            raise InputError(
                f"{option} {reference} is a Python object of the program that trained; rerun that "
                "program, or use code in a file: file.py:name"
            )
        return _OBJECTS[reference]
    if not place or not name:
        raise InputError(
            f"{option} {reference!r} is not in the form file.py:name or package.module:name"
        )
    try:
        if place.endswith(".py"):
            module = import_file(Path(place).resolve())
        else:
            module = importlib.import_module(place)
    except (
        Exception,
        SystemExit,
    ) as error:  # importing a user's module may raise anything
        what = f"{type(error).__name__}: {describe_object(error, str)}"
        hint = f"; did you mean {place}.py:{name}?" if Path(f"{place}.py").is_file() else ""
        raise InputError(
            f"{option} {reference}: {place} cannot be imported ({what}){hint}"
        ) from error
    found = vars(module).get(name)
    if not callable(found):
        names = [key for key, value in vars(module).items() if callable(value) and key[:1] != "_"]
        raise InputError(
            f"{option} {reference}: {kind} {name} not found in {place}; it has "
            f"{', '.join(names) or 'none'}"
        )
    return found


PROGRAM = "python"
"""Prefix of references to objects that exist only in this program, such as in a notebook cell."""

_OBJECTS: dict[str, Callable[..., Any]] = {}


def make_reference(found: Callable[..., Any]) -> str:
    """Returns a reference that `load_object` resolves: the module and name if they can be imported.

    Otherwise only this process can resolve it. It then holds a digest of the object's code, so that
    a different function is a different recipe (`lockstep.config.code_digest`).

    Raises:
        InputError: It is neither a function nor a class.
    """
    if not inspect.isfunction(found) and not inspect.isclass(found):
        kind = type(found).__name__
        raise InputError(
            f"{describe_object(found)} is a {kind}, whose behavior its code does not determine; "
            "write a function that calls it"
        )
    module = found.__module__
    name = found.__qualname__
    if module != "__main__" and vars(sys.modules[module]).get(name) is found:
        return f"{module}:{name}"
    reference = f"{PROGRAM}:{name.replace('<', '').replace('>', '')}-{digest_code(found)}"
    _OBJECTS[reference] = found
    return reference


def is_in_program(reference: str) -> bool:
    """True if the object exists only in this program."""
    return reference.startswith(f"{PROGRAM}:")


def find_file(reference: str) -> Path | None:
    """The file of `file.py:name` or `package.module:name`, located without importing it."""
    place = reference.rpartition(":")[0]
    if not place:
        return None
    paths: list[Path] = []
    if place.endswith(".py"):
        paths.append(Path(place))
    else:
        inside = place.replace(".", "/")
        for entry in sys.path:
            paths += [Path(entry, inside, "__init__.py"), Path(entry, f"{inside}.py")]
    try:
        return next((path for path in paths if path.is_file()), None)
    except (OSError, ValueError):  # not a valid file name
        return None


def is_imported(reference: str) -> bool:
    """True if this process has imported a reference's module, so its file does not run again."""
    place = reference.rpartition(":")[0]
    if place.endswith(".py"):
        return Path(place).resolve() in _MODULES
    return place in sys.modules


def find_own_file(kind: type) -> Path | None:
    """The file of a class loaded by `file.py:name`; None if it can be imported by module name."""
    return next(
        (path for path, (_, module) in _MODULES.items() if module.__name__ == kind.__module__), None
    )


LARGEST_REWARD = 3.4e38
"""Largest absolute reward: rewards are fp32, and a larger one would overflow to infinity."""


def read_reward(reward: object) -> float | None:
    """A reward that the user's code returned; None means no verdict.

    Raises:
        ValueError: It is neither None nor a number that fp32 holds; the text begins with the value.
    """
    if reward is None:
        return None
    try:
        number = float(reward) if isinstance(reward, numbers.Real) else math.nan
    except Exception:  # too large, or an instance of a user's class
        number = math.nan
    if not abs(number) <= LARGEST_REWARD:
        raise ValueError(
            f"{describe_object(reward)}; return a finite number, or None for no verdict"
        )
    return number


def describe_object(thing: object, write: Callable[[Any], str] = repr) -> str:
    """A user's object as one short line of text, even if its `repr` or `str` raises."""
    try:
        return " ".join(shorten_text(write(thing)).split())
    except Exception as error:
        return f"an object that cannot be printed ({type(error).__name__})"


def describe_error(error: Exception) -> str:
    """Describes an error of user code, with the line of the user's file that caused it."""
    frames = traceback.extract_tb(error.__traceback__)
    frame = next((frame for frame in frames if frame.filename != frames[0].filename), frames[-1])
    return (
        f"raised {type(error).__name__}: {describe_object(error, str)} "
        f"({Path(frame.filename).name}, line "
        f"{frame.lineno})"
    )


_MODULES: dict[Path, tuple[bytes, ModuleType]] = {}
"""Content of each file when it ran, and its module."""


def import_file(path: Path) -> ModuleType:
    """Imports a file once per content, so that all uses of it share the same classes.

    The module's name depends only on the file: objects pickled in one process are found in any
    other that has loaded it.
    """
    if not path.is_file():
        raise FileNotFoundError(f"file not found: {path}")
    text = path.read_bytes()
    known = _MODULES.get(path)
    if known is not None and known[0] == text:
        return known[1]
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))  # as for a script, which may import its neighbors
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:8]
    name = f"lockstep_user_{path.stem}_{digest}"
    spec = importlib.util.spec_from_file_location(name, path, loader=find_loader(name, path))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # like an import: dataclasses, for example, look up their module there
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    _MODULES[path] = text, module
    return module
