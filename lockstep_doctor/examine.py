"""Examines two engines on requests: locates their disagreement and measures it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lockstep_doctor.columns import SIDES, TokenColumns, examine_columns
from lockstep_doctor.locate import GapLocation, locate, pick_logprobs
from lockstep_doctor.measures import describe_difference
from lockstep_doctor.statistics import find_gap
from lockstep_doctor.tap import Tap

_DELIVERED = 1e-3
"""Largest difference between returned log-probabilities and the engine's own logits, nats."""

LogprobPair = tuple[Tensor, Tensor | None]
"""Log-probabilities of one request: computed from an engine's logits, and as the engine returns
them (None if it does not).
"""


@dataclass(frozen=True)
class PairExamination:
    """Result of `examine`.

    Attributes:
        reference: Name of the reference engine.
        other: Name of the examined engine.
        request: Number of the request with the largest gap.
        tokens: Token ids of that request.
        gaps: Gap of each request, nats.
        location: Location of the gap.
        columns: Faults in the returned log-probabilities.
        measured: Descriptions of the wrong value, by place; if it is unknown which engine is wrong,
            of the examined one's.
    """

    reference: str
    other: str
    request: int
    tokens: Tensor
    gaps: Sequence[float]
    location: GapLocation
    columns: Sequence[str]
    measured: Sequence[Sequence[str]]

    @property
    def agrees(self) -> bool:
        """True if rounding explains all differences."""
        return not self.columns and not self.location.noisy and not self.location.disagrees


def examine(
    reference: Tap,
    other: Tap,
    requests: Sequence[Tensor],
    witness: Tap | None = None,
    rounded: Sequence[Tap] = (),
) -> PairExamination:
    """Compares two engines on requests, and locates the gap of the request with the largest one.

    Args:
        reference: Reference engine.
        other: Examined engine.
        requests: Token ids of each request.
        witness: The model in float64.
        rounded: The witness's program in the types of the engines.
    """
    right = [_read_logprobs(reference, tokens_T) for tokens_T in requests]
    own = [_read_logprobs(other, tokens_T) for tokens_T in requests]
    gaps = [find_gap(first, second) for (first, _), (second, _) in zip(right, own, strict=True)]
    columns = [
        *_check_columns(reference.name, requests, right),
        *_check_columns(other.name, requests, own),
    ]
    worst = max(range(len(gaps)), key=gaps.__getitem__)
    found = locate(reference, other, requests[worst], witness, rounded=rounded)
    measured = list[list[str]]()
    for place in found.places:
        values = list(place.values.values())
        if place.wrong_engines == list(place.values)[:1]:
            values.reverse()
        measured.append(list(describe_difference(values[0], values[1], place.tolerance)))
    return PairExamination(
        reference.name, other.name, worst, requests[worst], gaps, found, columns, measured
    )


def _read_logprobs(tap: Tap, tokens_T: Tensor) -> LogprobPair:
    capture = tap.run(tokens_T, {})
    return pick_logprobs(capture.logits, tokens_T), capture.column


def _check_columns(
    name: str, requests: Sequence[Tensor], read: Sequence[LogprobPair]
) -> Iterator[str]:
    """Yields faults in an engine's log-probabilities: the returned ones must match its own
    logits.
    """
    own = [column for column, _ in read]
    returned = [column.cpu() for _, column in read if column is not None]
    if not all(bool(column.isfinite().all()) for column in own):
        yield f"{name} returns non-finite log-probabilities"
    largest = 0.0
    for a, b in zip(returned, own, strict=bool(returned)):
        off = (a.double() - b).abs().nan_to_num(float("inf"))
        largest = max(largest, float(off.max()))
    if largest < _DELIVERED:
        return
    yield (
        f"{name} returns log-probabilities that differ from its own logits by up to "
        f"{largest:.2g} nats:"
    )
    offsets = torch.tensor([0, *(tokens.numel() for tokens in requests)]).cumsum(0)
    mask = torch.ones(int(offsets[-1]), dtype=torch.bool)
    mask[offsets[:-1]] = False
    train = torch.zeros(len(mask), dtype=torch.float64)
    infer = torch.zeros_like(train)
    train[mask] = torch.cat(list(own)).double()
    infer[mask] = torch.cat(list(returned)).double()
    names = dict(zip(SIDES, (name, "the column"), strict=True))
    for one in examine_columns(
        TokenColumns(train, infer, mask, offsets, ids=torch.cat(list(requests)), names=names)
    ):
        yield f"{one.kind}, {one.tokens} tokens in {one.where}: {one.what}"
