"""The examination of two engines: from requests to a place, what is measured there, and a request that is small."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from torch import Tensor

from lockstep_doctor.locate import ENOUGH, Location, Place, locate, nats
from lockstep_doctor.measures import measure
from lockstep_doctor.modules import ModuleTap
from lockstep_doctor.settings import (
    Difference,
    ShowsModules,
    can_undo,
    find_differences,
    select_inside,
    undo,
)
from lockstep_doctor.shrink import KEPT, shrink
from lockstep_doctor.tap import Tap

_WORTH = 0.2
"""Share of the gap from which on the undoing of one setting is said."""

_MOST_UNDONE = 16
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
class Examination:
    """Result of `examine`.

    Attributes:
        reference: Name of the engine that the other one is compared with.
        other: Of the one that is examined.
        request: Number of the request that differs most.
        requests: How many were read.
        tokens: Its ids.
        gaps: Of each request, nats.
        location: Of the gap.
        measured: By place, what its value is instead.
        undone: By place, settings that differ.
        columns: What is wrong with log-probabilities as they are delivered.
        smallest: A request that keeps `KEPT` of the gap.
        small: Of the smallest request's gap.
        switches: By name, the gap under another setting.
    """

    reference: str
    other: str
    request: int
    requests: int
    tokens: Tensor
    gaps: Sequence[float]
    location: Location
    measured: Sequence[Sequence[str]]
    undone: Sequence[Sequence[Undone]]
    columns: Sequence[str]
    smallest: Tensor
    small: Location
    switches: Mapping[str, float]

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
    switches: Mapping[str, Pair] | None = None,
    heard: Callable[[str], object] = lambda phase: None,
) -> Examination:
    """Examines two engines on requests, and locates the gap of the one that differs most.

    Args:
        reference: The engine that the other one is compared with.
        other: The engine that is examined.
        requests: Ids of each.
        witness: The model in float64.
        rounded: The witness's program in the types of the engines.
        switches: Other settings under which the gap is measured, by name.
        heard: Is told what is done next.
    """
    heard(f"read {len(requests)} requests")
    columns, gaps = list[str](), list[float]()
    for tokens_T in requests:
        pair = [tap.run(tokens_T, {}) for tap in (reference, other)]
        gaps.append(nats(pair[0].logits, pair[1].logits, tokens_T))
        for tap, capture in zip((reference, other), pair, strict=True):
            if capture.column is not None:
                columns += compare_column(tap.name, capture.column, capture.logits, tokens_T)
    worst = max(range(len(gaps)), key=gaps.__getitem__)
    tokens_T = requests[worst]
    heard(f"locate a gap of {gaps[worst]:.2g} nats")
    found = locate(reference, other, tokens_T, witness, rounded=rounded)
    made = Examination(
        reference.name, other.name, worst, len(requests), tokens_T, gaps, found, [], [], columns, tokens_T, found, {}
    )
    if not found.disagrees:
        return made
    heard("describe it")
    measured = [list(_measured(place, other.name, reference.name, found)) for place in found.places]
    undone = [_undone(reference, other, tokens_T, found, place) for place in found.places]
    heard("shrink the request")
    smallest = _shrunk(reference, other, tokens_T, found, witness)
    small = locate(reference, other, smallest, witness, rounded=rounded)
    if [one.end.stage for one in small.segments[:1]] != [one.end.stage for one in found.segments[:1]]:
        smallest, small = tokens_T, found
    under: dict[str, float] = {}
    for name, open_pair in (switches or {}).items():
        heard(f"measure {name}")
        with open_pair() as (first, second):
            under[name] = nats(first.run(tokens_T, {}).logits, second.run(tokens_T, {}).logits, tokens_T)
    return replace(made, measured=measured, undone=undone, smallest=smallest, small=small, switches=under)


def compare_column(name: str, column: Tensor, logits_TV: Tensor, tokens_T: Tensor) -> Iterator[str]:
    """Yields what is wrong with a column, if it is not that of the engine's own logits."""
    own = logits_TV[:-1].float().log_softmax(-1).gather(-1, tokens_T[1:, None].to(logits_TV.device))[:, 0].cpu()
    off = (column.float().cpu() - own).abs().nan_to_num(float("inf"))
    hit = (off > 1e-3).nonzero()[:, 0].tolist()
    if hit:
        yield (
            f"{name} delivers other log-probabilities than those of its own logits, by up to {float(off.max()):.2g} "
            f"nats, at {len(hit)} of {len(off)} tokens, the first at position {hit[0] + 1}"
        )


def _measured(place: Place, other: str, reference: str, found: Location) -> Iterator[str]:
    """About the side that is wrong; where that is not known, about the engine that is examined."""
    end = place.segments[0].end
    wrong = reference if place.wrong == [reference] else other
    right = place.values[reference if wrong == other else other]
    near = {cut: value for cut, value in found.seen.items() if cut.layer in (None, end.layer) and cut != end}
    yield from measure(right, place.values[wrong], near)


def _undone(reference: Tap, other: Tap, tokens_T: Tensor, found: Location, place: Place) -> list[Undone]:
    """The settings that the segment may have read and that differ, alike ones of all layers together."""
    if not isinstance(reference, ShowsModules) or not isinstance(other, ShowsModules):
        return []
    inside = find_differences(reference.model, other.model)
    if isinstance(other, ModuleTap):
        inside = select_inside(inside, *_modules(other, found, place))
    groups: dict[str, list[Difference]] = {}
    for one in inside:
        groups.setdefault(_LAYER.sub(".*.", f".{one.setting}"), []).append(one)
    right = reference.run(tokens_T, {}).logits
    mended = {one.end: found.seen[one.end] for it in found.places if it is not place for one in it.segments}
    gap = nats(right, other.run(tokens_T, mended).logits, tokens_T)

    def removed(some: Sequence[Difference]) -> float | None:
        some = [one for one in some if can_undo(one)]
        if not some:
            return None
        try:
            with undo(other.model, some):
                return 1 - nats(right, other.run(tokens_T, mended).logits, tokens_T) / gap
        except Exception:  # a setting of one engine may break another one's program
            return None

    every = sorted(groups.values(), key=lambda some: all(one.only_type for one in some))[:_MOST_UNDONE]
    return [Undone(str(some[0]), len(some), removed(some)) for some in every]


def _modules(tap: ModuleTap, found: Location, place: Place) -> tuple[list[str], list[str]]:
    """The modules at the ends of a place's segments, and those whose outputs were given."""
    at = {cut: address.split("|") for cut in found.seen if (address := tap.address(cut)) and "|" in address}
    ends = {one.end for one in place.segments}
    around = [cut for one in place.segments for cut in (one.start, one.end, *one.missing) if cut in at]
    given = [path for cut, (path, end, _) in at.items() if cut not in ends and end == "out"]
    return [at[cut][0] for cut in around], given


def _shrunk(reference: Tap, other: Tap, tokens_T: Tensor, found: Location, witness: Tap | None) -> Tensor:
    """The smallest request that keeps the gap, and shows the first place."""

    def shows(fewer: Tensor) -> bool:
        right = reference.run(fewer, {})
        if nats(right.logits, other.run(fewer, {}).logits, fewer) < KEPT * found.gap:
            return False
        if not found.places:
            return True
        end, tolerance = found.places[0].segments[0].end, found.tolerance
        own, its = (tap.run(fewer, right.seen).seen.get(end) for tap in (other, witness or reference))
        if own is None or its is None or own.numel() != its.numel():
            return bool(found.places[0].segments[0].missing)
        off = (own.double().flatten() - its.double().flatten()).nan_to_num(1e3)
        return float(off.norm()) > 2 * tolerance * float(its.double().norm())

    return shrink(shows, tokens_T)
