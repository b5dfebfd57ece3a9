"""Loss scaling for fp16, by the rule of `torch.amp.GradScaler`; keeps small gradients above 0.

That class decides on each rank separately and divides by its scale; here all ranks decide by the
norm that they share, and the scale is a power of two, so that scaling rounds nothing. It is the
factor of a *mean* loss: the learner sums losses, and divides the gradient by their denominator only
at the update.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from lockstep.core.metrics import LastValue, Metrics, Sum
from lockstep.models.precision import OVERFLOW

_START = 2**16
_INTERVAL = 2000
"""Number of consecutive updates without an overflow after which the scale doubles."""


class LossScale:
    """The loss scale of a learner, and the number of updates since it last changed.

    Attributes:
        factor: Factor of the summed loss, from the first pass of a batch to its update.
    """

    def __init__(self) -> None:
        self._scale = _START
        self._updates = 0
        self.factor = 1.0

    def set_factor(self, count: float) -> None:
        """Sets the factor for a batch, from its loss's denominator over all ranks."""
        self.factor = self._scale / 2.0 ** math.floor(math.log2(max(count, 1.0)))

    def count_update(self) -> Metrics:
        """Counts an update."""
        self._updates += 1
        used = self._scale
        if self._updates == _INTERVAL:
            self._scale = 2 * self._scale
            self._updates = 0
        return Metrics(loss_scale=LastValue(float(used)))

    def halve_after_overflow(self) -> Metrics:
        """Counts an overflowed gradient, whose update is skipped.

        Raises:
            FloatingPointError: The scale was already 1.
        """
        if self._scale == 1:
            raise FloatingPointError(
                f"the gradient overflows fp16 even at a loss scale of 1; {OVERFLOW}"
            )
        used = self._scale
        self._scale = self._scale // 2
        self._updates = 0
        return Metrics(updates_overflowed=Sum(1.0), loss_scale=LastValue(float(used)))

    def read_counters(self) -> dict[str, int]:
        """The state, for a checkpoint."""
        return {"loss_scale": self._scale, "updates_at_scale": self._updates}

    def restore_counters(self, counters: Mapping[str, int]) -> None:
        """Restores `counters`; a checkpoint of another type has none."""
        self._scale = counters.get("loss_scale", _START)
        self._updates = counters.get("updates_at_scale", 0)
