"""The base class of every recipe: options of one command, and what loading them has to know."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from pydantic import Field

from lockstep.config.section import Section


class Recipe(Section, ABC):
    """The options of one command."""

    command: ClassVar[str]
    """The command line of the recipe, such as `train {recipe}`."""
    steps_and_epochs: ClassVar[bool] = True
    """True if run.max_steps and run.max_epochs both count, where a recipe has them; else max_steps
    overrides epochs.
    """
    placement: ClassVar[tuple[str, ...]] = ("timeout_s",)
    """Options of samplers that change no result."""
    algorithm: str = Field(description="what is run")

    @property
    @abstractmethod
    def folder(self) -> str | None:
        """The folder of results; None: one that is named by the recipe and the digest of its
        options.
        """

    @property
    def trained_first(self) -> str | None:
        """The recipe whose model this one begins with, if any."""
        return None
