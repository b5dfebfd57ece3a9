"""The protocol between `locate` and a model: passes that record every cut and overwrite some."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from torch import Tensor

from lockstep_doctor.cuts import CutPoint, PassCapture
from lockstep_doctor.operators import OperatorTrace


class Tap(Protocol):
    """A model with visible intermediate values, in this process or a different one."""

    @property
    def name(self) -> str:
        """Name of the engine in reports."""
        ...

    def run(self, tokens_T: Tensor, forced: Mapping[CutPoint, Tensor]) -> PassCapture:
        """Reads one sequence alone, by prefill.

        Args:
            forced: Values that overwrite the model's own; cuts that the model does not have are
                ignored.
        """
        ...

    def trace(
        self,
        tokens_T: Tensor,
        forced: Mapping[CutPoint, Tensor],
        start: CutPoint | None,
        end: CutPoint,
    ) -> OperatorTrace:
        """Like `run`, but returns the operators that ran from `start` to `end`.

        An engine may also return operators before the layers, marked as early.
        """
        ...

    def functions(self, tokens_T: Tensor) -> Counter[str]:
        """Returns the number of calls of each function in model code, by qualified name."""
        ...


def trace_segment(
    trace: Callable[[CutPoint | None], OperatorTrace],
    order: Sequence[CutPoint],
    start: CutPoint | None,
    end: CutPoint,
) -> OperatorTrace:
    """Returns the operators of a segment between another engine's cuts, for an engine that may fuse
    several values into one operator.

    If the start comes after the end, or no operator runs between them, recording starts at an
    earlier cut.

    Args:
        trace: Reads the sequence, and records from a cut (None: the beginning) to the end.
        order: The cuts of this engine, in order of execution.
        start: The cut before the segment.
        end: The cut after it.
    """
    before: list[CutPoint | None] = (
        [None, *order[: order.index(end)]] if end in order else [None, *order]
    )
    if start in before:
        before = before[: before.index(start) + 1]
    for begin in reversed(before):
        found = trace(begin)
        if not all(one.early for one in found.operators):
            return found
    return OperatorTrace()
