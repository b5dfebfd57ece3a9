"""The examination of two engines: from requests to a place, what is measured there, and a request that is small."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from lockstep_doctor.column import TokenColumns, describe_column, examine_columns
from lockstep_doctor.column.columns import SIDES
from lockstep_doctor.cuts import name_cuts
from lockstep_doctor.file_tap import FileTap
from lockstep_doctor.locate import ENOUGH, FaultPlace, Location, locate, nats, pick_logprobs, share_removed
from lockstep_doctor.measures import measure
from lockstep_doctor.modules import find_watched
from lockstep_doctor.settings import (
    Difference,
    ShowsModules,
    find_differences,
    select_inside,
    undo,
)
from lockstep_doctor.shrink import KEPT, shrink
from lockstep_doctor.tap import Tap

_MOST_UNDONE = 16
"""Settings that are undone, one after the other."""

_LAYER = re.compile(r"\.\d+\.")

Pair = Callable[[], AbstractContextManager[tuple[Tap, Tap]]]
"""Function that opens both engines under another setting."""


@dataclass(frozen=True)
class Undone:
    """A difference of settings, and what undoing it does.

    Attributes:
        what: In words.
        count: In how many modules.
        removed: Share of the gap that is gone without it; None: it was not undone.
    """

    what: str
    count: int
    removed: float | None

    @property
    def confirmed(self) -> bool:
        """True if undoing it alone is enough."""
        return self.removed is not None and self.removed >= ENOUGH


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
        undone: By place, settings that differ.
        tokens_hit: Which tokens differ, with the rule that separates them.
        switches: By name, the gap under another setting.
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
    undone: Sequence[Sequence[Undone]] = ()
    tokens_hit: Sequence[str] = ()
    switches: Mapping[str, float] = field(default_factory=dict)
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
    switches: Callable[[], Mapping[str, Pair]] = dict,
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
        switches: Returns other settings under which a gap is measured, by name.
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
        hit = list(_find_tokens(requests, own))
        made = replace(_describe(made, reference, other, witness, switches, heard, in_time), tokens_hit=hit)
    return replace(made, left_out=[*left_out, *made.left_out])


def _describe(
    made: PairExamination,
    reference: Tap,
    other: Tap,
    witness: Tap | None,
    switches: Callable[[], Mapping[str, Pair]],
    heard: Callable[[str], object],
    in_time: Callable[[], bool],
) -> PairExamination:
    """Adds what is known about places: their values, settings that differ, the smallest request, other settings."""
    found, tokens_T, left_out = made.location, made.tokens, list[str]()
    heard("describe it")
    measured = [list(_measure_place(place, other.name, reference.name, found)) for place in found.places]
    compares = in_time()
    undone = [_compare_settings(reference, other, tokens_T, found, place) if compares else [] for place in found.places]
    heard("shrink the request")
    smallest = _shrink(reference, other, tokens_T, found, witness, in_time)
    left_out += ["settings that differ"] * (not compares) + ["smaller requests"] * (not in_time())
    small = replace(found, places=found.places[:1])
    if not torch.equal(smallest, tokens_T):
        small = _reread(reference, other, smallest, found, witness)
    under: dict[str, float] = {}
    for name, open_pair in switches().items():
        if not in_time():
            left_out.append(f"the gap {name}")
            continue
        heard(f"measure {name}")
        with open_pair() as (first, second):
            under[name] = nats(first.run(tokens_T, {}).logits, second.run(tokens_T, {}).logits, tokens_T)
    return replace(
        made, measured=measured, undone=undone, smallest=smallest, small=small, switches=under, left_out=left_out
    )


def _read(
    taps: tuple[Tap, Tap], requests: Sequence[Tensor], in_time: Callable[[], bool]
) -> tuple[list[float], dict[str, list[Tensor]], dict[str, list[Tensor]]]:
    """Reads requests while there is time: gaps, and by engine log-probabilities, computed from logits and delivered."""
    gaps, own, said = list[float](), {tap.name: list[Tensor]() for tap in taps}, dict[str, list[Tensor]]()
    for tokens_T in requests:
        if gaps and not in_time():
            break
        pair = [tap.run(tokens_T, {}) for tap in taps]
        gaps.append(nats(pair[0].logits, pair[1].logits, tokens_T))
        for tap, capture in zip(taps, pair, strict=True):
            own[tap.name].append(pick_logprobs(capture.logits, tokens_T))
            if capture.column is not None:
                said.setdefault(tap.name, []).append(capture.column)
    return gaps, own, said


def _check_columns(
    tap: Tap, requests: Sequence[Tensor], own: Sequence[Tensor], said: Sequence[Tensor] | None, most: float
) -> Iterator[str]:
    """Yields what is wrong with an engine's log-probabilities, before they are compared with another one's."""
    if not all(bool(column.isfinite().all()) for column in own):
        yield f"{tap.name} gives log-probabilities that are not finite"
    if said is not None:
        yield from _compare_column(tap, requests, own, said, most)


def _compare_column(
    tap: Tap, requests: Sequence[Tensor], own: Sequence[Tensor], said: Sequence[Tensor], most: float
) -> Iterator[str]:
    """Yields what is wrong with a column, if it is not that of the engine's own logits."""
    pairs = zip(said, own, strict=True)
    off = [float((a.double().cpu() - b).abs().nan_to_num(float("inf")).max()) for a, b in pairs]
    worst = max(range(len(off)), key=off.__getitem__)
    if off[worst] < most:
        return
    yield f"{tap.name} delivers other log-probabilities than those of its own logits, by up to {off[worst]:.2g} nats:"
    yield from _find_tokens(requests, {tap.name: own, "the column": said})
    logits = tap.run(requests[worst], {}).logits[:-1].cpu()
    yield describe_column(logits, requests[worst][1:].cpu(), said[worst].cpu(), most)


def _find_tokens(requests: Sequence[Tensor], columns: Mapping[str, Sequence[Tensor]]) -> Iterator[str]:
    """Yields which tokens of two columns, by their names, differ, and what their values are."""
    for one in examine_columns(_join(requests, columns)):
        where = "no rule separates them" if one.where is None else str(one.where) if one.where.atoms else "all of them"
        rule = (
            f" (precision {one.where.precision:.0%}, recall {one.where.recall:.0%})"
            if one.where is not None and one.where.atoms
            else ""
        )
        yield f"{one.kind}, {one.tokens} tokens, {where}{rule}: {one.what}"


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


def _measure_place(place: FaultPlace, other: str, reference: str, found: Location) -> Iterator[str]:
    """About the side that is wrong; where that is not known, about the engine that is examined."""
    start, end = place.segments[0].start, place.segments[0].end
    wrong = reference if place.wrong == [reference] else other
    right = place.values[reference if wrong == other else other]
    layers = (None, end.layer, start and start.layer)
    near = {cut: value for cut, value in found.seen.items() if cut.layer in layers and cut != end}
    yield from measure(right, place.values[wrong], near, place.tolerance)


def _compare_settings(reference: Tap, other: Tap, tokens_T: Tensor, found: Location, place: FaultPlace) -> list[Undone]:
    """The settings that the segment may have read and that differ, alike ones of all layers together."""
    if not isinstance(reference, ShowsModules) or not isinstance(other, ShowsModules):
        return []
    inside = select_inside(find_differences(reference.model, other.model), *_modules(other.model, found, place))
    groups: dict[str, list[Difference]] = {}
    for one in inside:
        groups.setdefault(_LAYER.sub(".*.", f".{one.setting}"), []).append(one)
    right = reference.run(tokens_T, {}).logits
    mended = {one.end: found.seen[one.end] for it in found.places if it is not place for one in it.segments}
    gap = nats(right, other.run(tokens_T, mended).logits, tokens_T)

    def remove(some: Sequence[Difference]) -> float | None:
        some = [one for one in some if one.can_undo]
        if not some:
            return None
        try:
            with undo(other.model, some):
                left = nats(right, other.run(tokens_T, mended).logits, tokens_T)
        except Exception:  # a setting of one engine may break another one's program
            return None
        return share_removed(gap, left, found.floor)

    every = sorted(groups.values(), key=lambda some: all(one.only_type for one in some))
    undone = [Undone(str(some[0]), len(some), remove(some)) for some in every[:_MOST_UNDONE]]
    undone += [Undone(str(some[0]), len(some), None) for some in every[_MOST_UNDONE:]]
    return sorted(undone, key=lambda one: -1.0 if one.removed is None else one.removed, reverse=True)


def _modules(model: nn.Module, found: Location, place: FaultPlace) -> tuple[list[str], list[str]]:
    """The modules at the ends of a place's segments, and those whose outputs were given."""
    at = name_cuts(find_watched(model))
    ends = {one.end for one in place.segments}
    around = {cut for one in place.segments for cut in (one.start, one.end, *one.missing)}
    given = [path for (path, side), cut in at.items() if side == "out" and cut in found.seen and cut not in ends]
    return [path for (path, _), cut in at.items() if cut in around], given


def _shrink(
    reference: Tap, other: Tap, tokens_T: Tensor, found: Location, witness: Tap | None, in_time: Callable[[], bool]
) -> Tensor:
    """The smallest request that keeps the gap, and shows the first place; a file has one request alone."""
    if isinstance(reference, FileTap) or isinstance(other, FileTap):
        return tokens_T

    def shows(fewer: Tensor) -> bool:
        if not in_time():
            return False
        right = reference.run(fewer, {})
        if nats(right.logits, other.run(fewer, {}).logits, fewer) < KEPT * found.gap:
            return False
        if not found.places:
            return True
        end = found.places[0].segments[0].end
        its = (witness or reference).run(fewer, right.seen).seen.get(end)
        sides = (other,) if witness is None else (other, reference)
        return any(leaves(tap.run(fewer, right.seen).seen.get(end), its) for tap in sides)

    def leaves(own: Tensor | None, its: Tensor | None) -> bool:
        if own is None or its is None or own.numel() != its.numel():
            return bool(found.places[0].segments[0].missing)
        off = (own.double().flatten() - its.double().flatten()).nan_to_num(1e3)
        return float(off.norm()) > 2 * found.tolerance * float(its.double().norm())

    return shrink(shows, tokens_T)


def _reread(reference: Tap, other: Tap, tokens_T: Tensor, found: Location, witness: Tap | None) -> Location:
    """The first place of a location, with the values of another request."""
    right = reference.run(tokens_T, {})
    exact = {} if witness is None else witness.run(tokens_T, right.seen).seen
    seen = {tap.name: tap.run(tokens_T, right.seen).seen for tap in (reference, other)}
    places: list[FaultPlace] = []
    for place in found.places[:1]:
        end = place.segments[0].end
        values = {name: its[end] for name, its in seen.items() if end in its}
        places.append(replace(place, exact=exact.get(end), values=values))
    gap = nats(right.logits, other.run(tokens_T, {}).logits, tokens_T)
    return Location(gap, found.floor, places, found.removed, right.seen)
