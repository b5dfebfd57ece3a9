"""The base class of every recipe: options of one command, and what loading them has to know."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from pydantic import Field

from lockstep.config.section import Section
from lockstep.config.task import Task


class Recipe(Section, ABC):
    """The options of one command."""

    command: ClassVar[str]
    """The command line of the recipe, such as `train {recipe}`."""
    steps_and_epochs: ClassVar[bool] = True
    """True if run.max_steps and run.max_epochs both count, where a recipe has them; else max_steps overrides epochs."""
    placement: ClassVar[tuple[str, ...]] = ("timeout_s",)
    """Options of samplers that change no result."""
    algorithm: str = Field(description="what is run")

    @property
    @abstractmethod
    def folder(self) -> str | None:
        """The folder of results; None: one that is named by the recipe and the digest of its options."""

    @property
    def trained_first(self) -> str | None:
        """The recipe whose model this one begins with, if any."""
        return None

    @property
    def task(self) -> Task | None:
        """The task that makes the rows, if one does."""
        return None

    def hand_down(self, first: Recipe) -> dict[str, Any]:
        """The options, by dotted keys, that the recipe trained first takes over from this one."""
        raise NotImplementedError(f"{type(self).__name__} trains nothing first, so it hands nothing to {first}")
