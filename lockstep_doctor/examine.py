"""The examination of two engines: from requests to a place, what is measured there, and a request that is small."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lockstep_doctor.columns import SIDES, TokenColumns, examine_columns
from lockstep_doctor.cuts import Capture, CutPoint
from lockstep_doctor.locate import FaultPlace, Location, locate, nats, pick_logprobs
from lockstep_doctor.measures import find_error, measure
from lockstep_doctor.tap import Tap

KEPT = 0.3
"""Share of the gap that a smaller request has to keep."""

_MOST_TRIED, _FEWEST = 40, 2
"""Smaller requests that are tried, and tokens of one: one is read, and one is scored."""


@dataclass(frozen=True)
class PairExamination:
    """Result of `examine`.

    Attributes:
        reference: Name of the engine that the other one is compared with.
        other: Of the one that is examined.
        request: Number of the request that differs most.
        requests: How many were read.
        tokens: Its ids.
        gaps: Of each request, nats.
        location: Of the gap.
        columns: What is wrong with log-probabilities as they are delivered.
        smallest: A request that keeps `KEPT` of the gap.
        small: The first place, with the values of the smallest request.
        measured: By place, what its value is instead.
        left_out: What was not done, for want of time.
    """

    reference: str
    other: str
    request: int
    requests: int
    tokens: Tensor
    gaps: Sequence[float]
    location: Location
    columns: Sequence[str]
    smallest: Tensor
    small: Location
    measured: Sequence[Sequence[str]] = ()
    left_out: Sequence[str] = ()

    @property
    def agrees(self) -> bool:
        """True if rounding explains all."""
        return not self.columns and not self.location.noisy and not self.location.disagrees


def examine(
    reference: Tap,
    other: Tap,
    requests: Sequence[Tensor],
    witness: Tap | None = None,
    rounded: Sequence[Tap] = (),
    heard: Callable[[str], object] = lambda phase: None,
    delivered: float = 1e-3,
    in_time: Callable[[], bool] = lambda: True,
) -> PairExamination:
    """Examines two engines on requests, and locates the gap of the one that differs most.

    Args:
        reference: The engine that the other one is compared with.
        other: The engine that is examined.
        requests: Ids of each.
        witness: The model in float64.
        rounded: The witness's program in the types of the engines.
        heard: Is told what is done next.
        delivered: Nats that a column may be from the engine's own logits.
        in_time: Is asked before each request but the first, and before each step behind a place. What was read is
            judged in any case.
    """
    heard(f"read {len(requests)} requests")
    gaps, own, said = _read(taps := (reference, other), requests, in_time)
    left_out = [f"{len(requests) - len(gaps)} of {len(requests)} requests"] if len(gaps) < len(requests) else []
    requests = requests[: len(gaps)]
    columns = [
        line for tap in taps for line in _check_columns(tap, requests, own[tap.name], said.get(tap.name), delivered)
    ]
    worst = max(range(len(gaps)), key=gaps.__getitem__)
    tokens_T = requests[worst]
    if [bool(own[tap.name][worst].isfinite().all()) for tap in taps] == [False, True]:
        reference, other = other, reference  # as `locate` does: values that are no numbers tell nothing about another
    heard(f"locate a gap of {gaps[worst]:.2g} nats")
    found = locate(reference, other, tokens_T, witness, rounded=rounded)
    made = PairExamination(
        reference.name, other.name, worst, len(requests), tokens_T, gaps, found, columns, tokens_T, found
    )
    if found.disagrees:
        made = _PlaceExaminer(reference, other, witness, tokens_T, found, heard, in_time).complete(made)
    return replace(made, left_out=[*left_out, *made.left_out])


def _read(
    taps: tuple[Tap, Tap], requests: Sequence[Tensor], in_time: Callable[[], bool]
) -> tuple[list[float], dict[str, list[Tensor]], dict[str, list[Tensor]]]:
    """Reads requests while there is time: gaps, and by engine log-probabilities, computed from logits and delivered."""
    gaps, own, said = list[float](), {tap.name: list[Tensor]() for tap in taps}, dict[str, list[Tensor]]()
    for tokens_T in requests:
        if gaps and not in_time():
            break
        pair = [tap.run(tokens_T, {}) for tap in taps]
        gaps.append(_find_gap(tokens_T, *pair))
        for tap, capture in zip(taps, pair, strict=True):
            own[tap.name].append(pick_logprobs(capture.logits, tokens_T))
            if capture.column is not None:
                said.setdefault(tap.name, []).append(capture.column)
    return gaps, own, said


def _check_columns(
    tap: Tap, requests: Sequence[Tensor], own: Sequence[Tensor], said: Sequence[Tensor] | None, most: float
) -> Iterator[str]:
    """Yields what is wrong with an engine's log-probabilities, before they are compared with another one's.

    What it delivers has to be what its own logits give.
    """
    if not all(bool(column.isfinite().all()) for column in own):
        yield f"{tap.name} gives log-probabilities that are not finite"
    pairs = zip(said or (), own, strict=said is not None)
    off = [float((a.double().cpu() - b).abs().nan_to_num(float("inf")).max()) for a, b in pairs]
    if said is None or max(off) < most:
        return
    worst = off.index(max(off))
    yield f"{tap.name} delivers other log-probabilities than those of its own logits, by up to {off[worst]:.2g} nats:"
    yield from _find_tokens(requests, {tap.name: own, "the column": said})


def _find_tokens(requests: Sequence[Tensor], columns: Mapping[str, Sequence[Tensor]]) -> Iterator[str]:
    """Yields which tokens of two columns, by their names, differ, and how."""
    for one in examine_columns(_join(requests, columns)):
        yield f"{one.kind}, {one.tokens} tokens in {one.where}: {one.what}"


def _join(requests: Sequence[Tensor], columns: Mapping[str, Sequence[Tensor]]) -> TokenColumns:
    """Columns of requests whose first tokens have no log-probability."""
    lengths = torch.tensor([0, *(tokens.numel() for tokens in requests)])
    offsets = lengths.cumsum(0)
    mask = torch.ones(int(offsets[-1]), dtype=torch.bool)
    mask[offsets[:-1]] = False
    train, infer = (
        torch.cat([x for column in some for x in (torch.zeros(1), column.cpu())]).double() for some in columns.values()
    )
    names = dict(zip(SIDES, columns, strict=True))
    return TokenColumns(train, infer, mask, offsets, ids=torch.cat(list(requests)), names=names)


@dataclass(frozen=True)
class _PlaceExaminer:
    """Engines that disagree about a request, and the places where they do; the rest is as `examine` is told."""

    reference: Tap
    other: Tap
    witness: Tap | None
    tokens_T: Tensor
    found: Location
    heard: Callable[[str], object]
    in_time: Callable[[], bool]

    def complete(self, made: PairExamination) -> PairExamination:
        """Adds what is known about places: their values, and the smallest request that shows the first one."""
        self.heard("describe it")
        measured = [list(self._measure(place)) for place in self.found.places]
        self.heard("shrink the request")
        smallest, small = self._shrink()
        left_out = [] if self.in_time() else ["smaller requests"]
        return replace(made, measured=measured, smallest=smallest, small=small, left_out=left_out)

    def _measure(self, place: FaultPlace) -> Iterator[str]:
        """About the side that is wrong; where that is not known, about the engine that is examined."""
        start, end = place.segments[0].start, place.segments[0].end
        both = self.reference.name, self.other.name
        wrong, right = both if place.wrong == [both[0]] else both[::-1]
        layers = (None, end.layer, start and start.layer)
        near = {cut: value for cut, value in self.found.seen.items() if cut.layer in layers and cut != end}
        yield from measure(place.values[right], place.values[wrong], near, place.tolerance)

    def _shrink(self) -> tuple[Tensor, Location]:
        """The smallest request that keeps the gap, and its values at the first place."""
        found = self.found
        small = replace(found, places=found.places[:1])

        def shows(fewer: Tensor) -> bool:
            nonlocal small
            if not self.in_time():
                return False
            right = self.reference.run(fewer, {})
            gap = _find_gap(fewer, right, self.other.run(fewer, {}))
            if gap < KEPT * found.gap:
                return False
            places = [self._reread(place, fewer, right.seen) for place in found.places[:1]]
            if places and not self._leaves(places[0]):
                return False
            small = Location(gap, found.floor, places, found.removed, right.seen)
            return True

        smallest = shrink(shows, self.tokens_T)
        return smallest, small

    def _reread(self, place: FaultPlace, tokens_T: Tensor, right: Mapping[CutPoint, Tensor]) -> FaultPlace:
        """A place with the values of another request."""
        end = place.segments[0].end
        exact = None if self.witness is None else self.witness.run(tokens_T, right).seen.get(end)
        seen = {tap.name: tap.run(tokens_T, right).seen for tap in (self.reference, self.other)}
        return replace(place, exact=exact, values={name: its[end] for name, its in seen.items() if end in its})

    def _leaves(self, place: FaultPlace) -> bool:
        """True where an engine is off by more than twice what rounding explains, or has no such value any more."""
        its = place.values.get(self.reference.name) if self.witness is None else place.exact
        sides = (self.other,) if self.witness is None else (self.other, self.reference)
        for own in (place.values.get(tap.name) for tap in sides):
            if own is None or its is None or own.numel() != its.numel():
                if place.segments[0].missing:
                    return True
            elif find_error(its, own)[0] > 2 * place.tolerance:
                return True
        return False


def shrink(shows: Callable[[Tensor], bool], tokens_T: Tensor) -> Tensor:
    """Drops stretches of tokens, long ones first, as long as the rest shows what all of them do."""
    size, tried = tokens_T.numel() // 2, 0
    while size and tried < _MOST_TRIED:
        end = tokens_T.numel()
        while end > 0 and tried < _MOST_TRIED:  # from the end: what comes later changes nothing before it
            start = max(end - size, 0)
            fewer = torch.cat([tokens_T[:start], tokens_T[end:]])
            tried += 1
            if fewer.numel() >= _FEWEST and shows(fewer):
                tokens_T = fewer
            end = start
        size //= 2
    return tokens_T


def _find_gap(tokens_T: Tensor, *both: Capture) -> float:
    one, other = (capture.logits for capture in both)
    return nats(one, other, tokens_T)
