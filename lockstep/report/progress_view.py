"""The state of a run's progress at one moment, for every display of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class ProgressView:
    """The state of a run's progress at one moment.

    Attributes:
        unit: Name of what is counted: steps by default.
        step: Steps done.
        total: Steps of the whole run; None while that is not known.
        phase: The current phase, and its seconds so far.
        metrics: Headlines of the newest step.
        tokens_per_s: Over the newest steps; None before the first.
        left_s: Seconds until the last step, at the pace of the newest; None after one step, which also warms up.
    """

    title: str
    unit: str
    step: int
    total: int | None
    phase: tuple[str, float] | None
    metrics: Mapping[str, float]
    tokens_per_s: float | None
    left_s: float | None

    @property
    def parts(self) -> list[str]:
        """Everything but the title and the phase, each as a few words."""
        parts = [f"{self.unit} {self.step}" if self.total is None else f"{self.unit} {self.step}/{self.total}"]
        parts += [f"{name} {value:.4g}" for name, value in self.metrics.items()]
        if self.tokens_per_s is not None:
            parts.append(f"{self.tokens_per_s:,.0f} tokens/s")
        if self.left_s is not None:
            parts.append(f"{_clock(self.left_s)} left")
        return parts

    @property
    def line(self) -> str:
        """The parts in one line of text."""
        return " · ".join(self.parts)


def _clock(seconds: float) -> str:
    """Hours, minutes and seconds, as on a clock."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
