"""Classes that recipes name: built in, or a user's own. Imports no torch.

Built-in classes are listed by import path and imported when a recipe names them; a recipe may also
set `file.py:Class` or `package.module:Class`.
"""

from __future__ import annotations

from collections.abc import Mapping
from inspect import isabstract, isclass
from typing import Generic, TypeVar

from lockstep.config.trust import log_code_file
from lockstep.config.user_code import load_object
from lockstep.core.errors import InputError

T = TypeVar("T")


class PluginRegistry(Generic[T]):
    """The classes that one option can name."""

    def __init__(
        self, option: str, base: type[T], derive_from: str, built_in: Mapping[str, str]
    ) -> None:
        """Registers classes by import path; `find_class` imports one on demand.

        Args:
            option: Key of the option, for messages.
            base: Their base class.
            derive_from: The class that users subclass, for messages.
            built_in: Import path of each, `package.module:Class`, by name.
        """
        self._option = option
        self._base = base
        self._derive_from = derive_from
        self._built_in = built_in

    def list_names(self) -> tuple[str, ...]:
        """The names of all built-in classes."""
        return tuple(self._built_in)

    def find_class(self, name: str) -> type[T] | None:
        """The class with this name; None if it does not exist.

        Raises:
            InputError: The named class cannot be imported, or lacks a required declaration.
        """
        place = self._built_in.get(name, name)
        if ":" not in place:
            return None
        if name not in self._built_in:
            log_code_file(self._option, place)
        found = load_object(place, self._option, "class")
        if not isclass(found) or not issubclass(found, self._base):
            raise InputError(
                f"{self._option} {name}: {place} has the wrong base class; derive it from "
                f"{self._derive_from}"
            )
        if isabstract(found):
            missing = ", ".join(sorted(vars(found)["__abstractmethods__"]))
            raise InputError(f"{self._option} {name}: {place} does not declare: {missing}")
        return found
