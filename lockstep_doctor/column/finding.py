"""A finding in two columns: which tokens, what is measured there, and what leaves such marks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from lockstep_doctor.column.predicates import Predicate

ColumnSide = Literal["train", "infer"]

_CONSISTENT: Mapping[str, tuple[str, ...]] = {
    "exactly 0": ("an entry that was never scored", "padding or another side's tokens counted as generated"),
    "constant": ("a default written where no score was", "a score held over from another token"),
    "floor": ("log-probabilities clamped from below", "a guard against minus infinity"),
    "ceiling": ("log-probabilities clamped from above",),
    "grid": ("log-probabilities stored, sent or computed in few digits",),
    "not finite": ("tokens outside of one side's support", "an overflow"),
    "rows moved": ("rows permuted between sampling and training", "results zipped with another order of requests"),
    "positions moved": ("log-probabilities read one token off", "a token more or less in front, such as BOS"),
    "formula": ("another unit or convention on one side",),
    "offset": ("another denominator: a padded or a cut vocabulary", "a number added after the softmax"),
    "scaled": ("a division by a length or a temperature after the softmax",),
    "off": (),
    "grows with position": ("another rotary embedding", "a cache in a low precision"),
    "grows with the age of the weights": ("asynchronous rollouts, which break nothing",),
    "few tokens far off": ("text that was tokenised again", "in a mixture of experts, another choice of experts"),
    "renormalised over a nucleus": ("top_p (or top_k) in one side's log-probabilities alone",),
    "temperature": ("other temperatures on both sides", "scaled or capped logits"),
}
"""Every kind of finding, and what leaves such marks, the likeliest first."""


@dataclass(frozen=True)
class Finding:
    """A mark in two columns, and what usually leaves such ones; which of these, or what else, it does not prove.

    Attributes:
        kind: In a few words, such as `exactly 0` or `rows moved`.
        side: Whose numbers show it; None: that cannot be told.
        where: Which tokens; None: no predicate separates them.
        share: Of the squares of the differences, each counting at most 3 nats, that lie in these tokens, or that a
            line explains.
    """

    kind: str
    what: str
    side: ColumnSide | None
    where: Predicate | None
    tokens: int
    share: float

    @property
    def consistent(self) -> tuple[str, ...]:
        """Causes that leave such marks, the likeliest first; empty: none in particular."""
        return _CONSISTENT[self.kind]

    @property
    def tokens_in_words(self) -> str:
        """The number of tokens, and which they are."""
        if self.where is None:
            return f"{self.tokens:,} tokens; no rule separates them from the others"
        if not self.where.atoms:
            return f"{self.tokens:,} tokens: all that were looked at"
        return (
            f"{self.tokens:,} tokens: {self.where} (of these {self.where.precision:.1%} are hit; they are "
            f"{self.where.recall:.1%} of all hit ones)"
        )
