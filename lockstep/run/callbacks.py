"""Functions of the user's program that a run calls: after each step, and after each validation. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

OnStep = Callable[[int, Mapping[str, float]], object]
"""Takes the number of steps done and their metrics, validation's among them where there was one."""
OnValidation = Callable[[int, Mapping[str, float]], object]
"""Takes the number of steps done and the metrics of the validation."""


@dataclass(frozen=True)
class Callbacks:
    """The functions to call; what they raise ends the run, after the step was logged and saved where that was due."""

    on_step: OnStep | None = None
    on_validation: OnValidation | None = None

    def step(self, step: int, values: Mapping[str, float]) -> None:
        """Reports a step."""
        if self.on_step is not None:
            self.on_step(step, values)

    def validation(self, step: int, values: Mapping[str, float]) -> None:
        """Reports a validation."""
        if self.on_validation is not None:
            self.on_validation(step, values)


NO_CALLBACKS = Callbacks()
"""Nothing is called."""
