"""A finding in two columns: which tokens, what is measured there, and what leaves such marks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lockstep_doctor.column.predicates import Predicate

ColumnSide = Literal["train", "infer"]


@dataclass(frozen=True)
class Finding:
    """A mark in two columns. Never a cause: other causes may leave the same.

    Attributes:
        kind: In a few words, such as `exactly 0` or `rows moved`.
        what: What was measured.
        side: Whose numbers show it; None: that cannot be told.
        where: Which tokens; None: no predicate separates them.
        tokens: How many.
        share: Of the squares of the differences, each counting at most 3 nats, that lie in these tokens, or that a
            formula explains.
        consistent: What leaves such marks, the likeliest first; empty: nothing in particular.
    """

    kind: str
    what: str
    side: ColumnSide | None
    where: Predicate | None
    tokens: int
    share: float
    consistent: tuple[str, ...] = ()
