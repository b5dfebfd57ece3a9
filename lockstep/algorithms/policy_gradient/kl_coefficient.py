"""The coefficient of the KL to the reference policy: fixed, or following a target (Ziegler et al. 2019, §2.2)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from lockstep.algorithms.policy_gradient.options import KL, AdaptiveKL

_FILE, _MAX_ERROR = "kl.json", 0.2  # beyond this error, relative to the target, the coefficient moves no faster


@dataclass
class KLCoefficient:
    """The KL coefficient β, which is part of a checkpoint if it is adaptive.

    Attributes:
        value: β of the current step.
        adaptive: The target; None: β is fixed.
    """

    value: float
    adaptive: AdaptiveKL | None

    @classmethod
    def of(cls, section: KL) -> KLCoefficient:
        """The coefficient before the first step, from the recipe."""
        return cls(section.coef, section.adaptive)

    def follow(self, kl: float) -> None:
        """Sets β of the next step.

        Args:
            kl: KL(π ‖ π_ref) per token of this step's responses, nats.
        """
        if self.adaptive is not None:
            error = max(-_MAX_ERROR, min(_MAX_ERROR, kl / self.adaptive.target - 1.0))
            self.value *= 1.0 + self.adaptive.gain * error

    def save(self, folder: Path) -> None:
        """Saves β; see `Learner.save`."""
        folder.mkdir(parents=True, exist_ok=True)
        # JSON has the shortest digits that read back as the same.
        (folder / _FILE).write_text(json.dumps({"coef": self.value}), encoding="utf-8")

    def poll_save(self, wait: bool) -> bool:
        return True

    def load(self, folder: Path) -> None:
        """Restores β; see `Learner.load`. A run whose coefficient was fixed has none, and keeps the recipe's."""
        if folder.exists():
            self.value = float(json.loads((folder / _FILE).read_text(encoding="utf-8"))["coef"])
