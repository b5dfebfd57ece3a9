"""The base class of all recipes: the options of one command, and declarations for loading."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from pydantic import Field

from lockstep.config.section import Section


class Recipe(Section, ABC):
    """The options of one command."""

    command: ClassVar[str]
    """The command line that uses the recipe, such as `train {recipe}`."""
    steps_and_epochs: ClassVar[bool] = True
    """True if run.max_steps and run.max_epochs both apply; else max_steps overrides max_epochs."""
    placement: ClassVar[tuple[str, ...]] = ("timeout_s",)
    """Options of samplers that do not change results."""
    algorithm: str = Field(description="algorithm or command to run")

    @property
    @abstractmethod
    def folder(self) -> str | None:
        """The folder of results; None means that the recipe's name and digest name it."""

    @property
    def trained_first(self) -> str | None:
        """The recipe whose model this one starts from, if any."""
        return None
