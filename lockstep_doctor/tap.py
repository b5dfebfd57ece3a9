"""The protocol between `locate` and a model: one pass, of which every cut is seen and some are given other values."""

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
            tokens_T: Its ids.
            forced: Values that are put in the place of the model's own; cuts that the model has not are left out.
        """
        ...

    def trace(
        self, tokens_T: Tensor, forced: Mapping[CutPoint, Tensor], start: CutPoint | None, end: CutPoint
    ) -> OperatorTrace:
        """Like `run`, and returns every operator that ran after `start` was seen and until `end` was."""
        ...

    def functions(self, tokens_T: Tensor) -> Counter[str]:
        """Returns how often each function of models runs, by its name with its class."""
        ...


def trace_from_before(
    trace: Callable[[CutPoint | None], OperatorTrace], order: Sequence[CutPoint], start: CutPoint | None
) -> OperatorTrace:
    """Returns the operators of a segment; where one gives both of its ends, those from an earlier cut on.

    Args:
        trace: Reads the sequence, and records from a cut on.
        order: The cuts of the engine, in order of execution.
        start: The cut before the segment.
    """
    found = trace(start)
    while not found.operators and start is not None:
        place = order.index(start) if start in order else 0
        start = order[place - 1] if place else None
        found = trace(start)
    return found
