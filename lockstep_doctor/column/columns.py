"""Two columns of log-probabilities of the same tokens, as a dump of any program has them, and what is found there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from lockstep_doctor.column.predicates import Feature, Predicate
from lockstep_doctor.statistics import Compared

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


RowFact = Literal["weight version", "temperature", "top_p", "prompt", "length of the prompt"]
"""Numbers that a dump may say of each row; rows with the same `prompt` answer the same one."""

_CONSEQUENCE = 6.0
"""Cost of a side's own value as a feature, which a damage may have made itself."""

SIDES: Mapping[ColumnSide, str] = {"train": "training", "infer": "inference"}
"""Names of both sides where nothing else is said."""


@dataclass(frozen=True)
class TokenColumns:
    """Two sides' log-probabilities of N entries in B rows, one row behind the other.

    Attributes:
        train: Log-probabilities of the training side, nats, float64 [N].
        infer: Of the inference side, float64 [N].
        mask: True for tokens that were generated, bool [N]; the others are not compared.
        offsets: Where each row begins, and N: int64 [B + 1].
        ids: Token ids, int64 [N]; None: unknown.
        facts: What is known of the rows besides, float64 [B] each.
        names: What the sides are called in sentences.
    """

    train: Tensor
    infer: Tensor
    mask: Tensor
    offsets: Tensor
    ids: Tensor | None = None
    facts: Mapping[RowFact, Tensor] = field(default_factory=dict)
    names: Mapping[ColumnSide, str] = field(default_factory=lambda: SIDES)

    def __post_init__(self) -> None:
        entries, rows = self.train.numel(), self.offsets.numel() - 1
        wanted = {"infer": (self.infer, entries), "mask": (self.mask, entries)}
        wanted |= {} if self.ids is None else {"ids": (self.ids, entries)}
        for name, (column, size) in (wanted | {name: (value, rows) for name, value in self.facts.items()}).items():
            if column.shape != (size,):
                raise ValueError(f"{name} has shape {list(column.shape)} for {entries} entries in {rows} rows")
        if rows < 0 or int(self.offsets[0]) or int(self.offsets[-1]) != entries or bool((self.lengths < 0).any()):
            raise ValueError(f"offsets must rise from 0 to {entries}, the number of entries")

    @property
    def lengths(self) -> Tensor:
        """Entries of each row, int64 [B]."""
        return self.offsets.diff()

    @property
    def row(self) -> Tensor:
        """Row of each entry, int64 [N]."""
        return torch.repeat_interleave(torch.arange(self.lengths.numel()), self.lengths)

    @property
    def position(self) -> Tensor:
        """Position of each entry in its sequence, int64 [N]."""
        return torch.arange(self.train.numel()) - self.offsets[:-1][self.row]

    def compare(self) -> Compared:
        """Both sides on the tokens that were generated."""
        lengths = torch.zeros_like(self.lengths).index_add_(0, self.row, self.mask.long())
        prompt = self.facts.get("prompt")
        return Compared(
            self.train[self.mask].double(),
            self.infer[self.mask].double(),
            lengths,
            self.position[self.mask],
            None if prompt is None else prompt.long(),
        )

    def take(self, rows: int) -> TokenColumns:
        """The rows in front."""
        end = int(self.offsets[rows])
        facts: dict[RowFact, Tensor] = {name: value[:rows] for name, value in self.facts.items()}
        return replace(
            self,
            train=self.train[:end],
            infer=self.infer[:end],
            mask=self.mask[:end],
            offsets=self.offsets[: rows + 1],
            ids=None if self.ids is None else self.ids[:end],
            facts=facts,
        )


def name_value(side: str) -> str:
    """Returns the name of the feature that is the value of a side with this name."""
    return f"{side}'s log-probability"


def list_features(columns: TokenColumns) -> list[Feature]:
    """Returns the features of the tokens that are compared; those that never vary are left out."""
    mask = columns.mask.numpy()
    row, position = columns.row.numpy()[mask], columns.position.numpy()[mask]
    first = np.searchsorted(row, row)  # of the tokens in the row of each
    place = np.arange(row.size) - first
    stretch = np.cumsum((np.diff(position, prepend=-1) > 1) | (place == 0))
    length = np.bincount(row, minlength=1)[row]
    found = [
        Feature("row", row, repeats=True),
        Feature("place in the response", place + 1, repeats=True),
        Feature("position", position, repeats=True),
        Feature("places before the last token", length - 1 - place, repeats=True),
        Feature("turn", stretch - stretch[first] + 1),
        Feature("place in the turn", np.arange(row.size) - np.searchsorted(stretch, stretch) + 1),
        Feature("length of the response", length),
        Feature("length of the prompt", position[first]),
        Feature("place in the batch", np.arange(row.size), repeats=True),
    ]
    if columns.ids is not None:
        ids = columns.ids.numpy()
        before = np.where(position > 0, np.roll(ids, 1)[mask], -1)
        found += [Feature("id", ids[mask]), Feature("id before", before, cost=2.0)]
    told = {name: Feature(name, value.double().numpy()[row]) for name, value in columns.facts.items()}
    found = [one for one in found if one.name not in told] + list(told.values())
    for side, values in ((columns.names["train"], columns.train), (columns.names["infer"], columns.infer)):
        finite = np.nan_to_num(values.double().numpy()[mask], nan=-1e30, posinf=1e30, neginf=-1e30)
        found.append(Feature(name_value(side), finite, cost=_CONSEQUENCE))
    return [one for one in found if one.varies]
