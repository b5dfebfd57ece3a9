"""The protocol between `locate` and a model: one pass, of which every cut is seen and some are
given other values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from torch import Tensor

from lockstep_doctor.cuts import Capture, CutPoint
from lockstep_doctor.operators import OperatorTrace


class Tap(Protocol):
    """A model whose inside is seen, in this process or another one."""

    @property
    def name(self) -> str:
        """Name of the engine in reports."""
        ...

    def run(self, tokens_T: Tensor, forced: Mapping[CutPoint, Tensor]) -> Capture:
        """Reads one sequence alone, by prefill.

        Args:
            forced: Values that are put in the place of the model's own; cuts that the model has not
                are left out.
        """
        ...

    def trace(
        self,
        tokens_T: Tensor,
        forced: Mapping[CutPoint, Tensor],
        start: CutPoint | None,
        end: CutPoint,
    ) -> OperatorTrace:
        """Like `run`, and returns every operator that ran after `start` was seen and until `end`
        was.

        An engine may return what ran before the layers, too, marked as early.
        """
        ...

    def functions(self, tokens_T: Tensor) -> Counter[str]:
        """Returns how often each function of models runs, by its name with its class."""
        ...


def trace_segment(
    trace: Callable[[CutPoint | None], OperatorTrace],
    order: Sequence[CutPoint],
    start: CutPoint | None,
    end: CutPoint,
) -> OperatorTrace:
    """Returns the operators of a segment of another engine, in one that may compute several values
    by one operator.

    Where the start comes behind the end, or no operator runs between them, those from an earlier
    cut on are recorded.

    Args:
        trace: Reads the sequence, and records from a cut to the end; from the beginning: None.
        order: The cuts of this engine, in order of execution.
        start: The cut before the segment.
        end: The cut behind it.
    """
    before: list[CutPoint | None] = (
        [None, *order[: order.index(end)]] if end in order else [None, *order]
    )
    if start in before:
        before = before[: before.index(start) + 1]
    else:
        before = before
    for begin in reversed(before):
        found = trace(begin)
        if not all(one.early for one in found.operators):
            return found
    return OperatorTrace()
