"""What a step of any algorithm gives to the loop that runs it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lockstep.metrics import Metrics


@dataclass(frozen=True)
class StepResult:
    """Outcome of one step.

    Attributes:
        metrics: To be logged.
        position: Rows of training data used since the start of the run; the next step begins there.
        tokens: Tokens that were generated or trained on, for the throughput.
        samples: Rows for the sample log.
    """

    metrics: Metrics
    position: int
    tokens: int
    samples: list[dict[str, Any]] = field(default_factory=list)
