"""Locates a disagreement between two engines: finds segments whose outputs differ given the same
inputs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, zip_longest

from torch import Tensor

from lockstep_doctor.cuts import TRUNK, CutPoint, PassCapture
from lockstep_doctor.measures import BROKEN, find_error
from lockstep_doctor.operators import Operator
from lockstep_doctor.statistics import CAP, find_gap, score_tokens
from lockstep_doctor.suspects import (
    find_caller,
    find_makers,
    find_other_number,
    find_rearranged,
    find_suspects,
    operator_around,
    order_suspects,
)
from lockstep_doctor.tap import Tap

ENOUGH = 0.9
"""Share of the gap that must vanish to prove a place."""

LOOSE = 5e-5
"""Relative error that fp32 rounding may cause between two programs."""

LEAST = 5e-5
"""Gap that fp32 rounding may cause between two programs, nats."""

FLOORS = 3.0
"""A difference above this multiple of the measured rounding is not rounding."""

_SEVERAL = re.compile(r"\.\d+$")
"""Suffix of the stages of a module's further outputs."""

_SAME = 1e-7


@dataclass(frozen=True)
class Segment:
    """The part of a model between two cuts.

    Attributes:
        start: The cut before it; None: the ids.
        end: The cut after it.
        error: RMS of the difference over RMS of the value at the end, given the reference's inputs.
        first: First position that differs.
        missing: Cuts in between that the reference has and the other engine did not execute.
    """

    start: CutPoint | None
    end: CutPoint
    error: float
    first: int
    missing: tuple[CutPoint, ...] = ()

    def __str__(self) -> str:
        return f"{self.start or 'ids'} → {self.end}"


@dataclass(frozen=True)
class Suspect:
    """An operator that reads equal values and returns a different one.

    Attributes:
        engine: Name of its engine.
        operator: The operator, with its call stack, innermost line first.
    """

    engine: str
    operator: Operator


@dataclass(frozen=True)
class FaultPlace:
    """Segments that end at the same stage of several layers, with observations of the first.

    Attributes:
        segments: In order of execution.
        removed: Share of the gap that vanishes when their ends alone get the reference's values.
        suspects: Operators of the first segment, likeliest first.
        values: Value at the first segment's end by engine, given the same inputs.
        exact: The same value in float64; None if the witness does not have this cut.
        tolerance: Relative error at the first segment's end that rounding explains.
    """

    segments: Sequence[Segment]
    removed: float
    suspects: Sequence[Suspect]
    values: Mapping[str, Tensor]
    exact: Tensor | None
    tolerance: float

    @property
    def engine_errors(self) -> dict[str, float]:
        """Relative error against float64 at the first segment's end, by engine, given the same
        inputs.
        """
        errors = dict[str, float]()
        for name, own in self.values.items():
            if self.exact is not None and own.numel() == self.exact.numel():
                errors[name] = find_error(self.exact, own)[0]
        return errors

    @property
    def wrong_engines(self) -> list[str]:
        """The engines whose error against float64 exceeds what rounding explains."""
        return [name for name, error in self.engine_errors.items() if not error <= self.tolerance]


@dataclass(frozen=True)
class GapLocation:
    """Result of `locate`.

    Attributes:
        gap: Root mean square difference of log-probabilities, nats.
        floor: Gap that rounding causes in the types of both engines, nats; 0 if not measured.
        places: Smallest set of places whose correction removes the gap, in order of execution; two
            faults are two places.
        removed: Share of the gap that vanishes when all their ends get the reference's values.
        seen: The reference's values by cut.
        noisy: Cuts whose values differ between runs on the same inputs, by engine.
        others: Other segments that differ given the same inputs, but cause little of the gap.
        compared: Relative error at each common cut, given the same inputs, in order of execution.
    """

    gap: float
    floor: float = 0.0
    places: Sequence[FaultPlace] = ()
    removed: float = 0.0
    seen: Mapping[CutPoint, Tensor] = field(default_factory=dict)
    noisy: Mapping[str, Sequence[CutPoint]] = field(default_factory=dict)
    others: Sequence[Segment] = ()
    compared: Mapping[CutPoint, float] = field(default_factory=dict)

    @property
    def disagrees(self) -> bool:
        """True if rounding does not explain the gap."""
        return exceeds_rounding(self.gap, self.floor)

    @property
    def all_segments(self) -> list[Segment]:
        """Segments of all places."""
        return _flatten_segments([place.segments for place in self.places])


def locate(
    reference: Tap,
    other: Tap,
    tokens_T: Tensor,
    witness: Tap | None = None,
    tolerance: float = LOOSE,
    rounded: Sequence[Tap] = (),
) -> GapLocation:
    """Finds the places where two engines disagree about one sequence.

    The other engine reads the sequence with the reference's value forced at every cut, so each
    segment has the same inputs in both engines. Segments whose outputs differ are corrected, alone
    and together, until the gap is gone; in the first segment of each kind the operators of both
    engines are compared. If the reference's log-probabilities are not finite, the engines swap
    roles.

    Args:
        reference: Reference engine.
        other: Examined engine.
        tokens_T: Token ids of one sequence.
        witness: The model in float64, to decide which engine is wrong.
        tolerance: Relative error at a cut that fp32 rounding may cause.
        rounded: The witness's program in the types of the engines; its difference from the witness
            is the noise floor.
    """
    right = reference.run(tokens_T, {})
    own = other.run(tokens_T, {})
    if not gives_numbers(right, tokens_T) and gives_numbers(own, tokens_T):
        reference, other, right, own = other, reference, own, right
    gap = measure_gap(right.logits, own.logits, tokens_T)
    exact: Mapping[CutPoint, Tensor] = {}
    floor = 0.0
    errors: dict[CutPoint, float] = {}
    if witness is not None:
        exact = witness.run(tokens_T, right.seen).seen
        floor, errors = measure_rounding(witness, rounded, tokens_T, right, exact)
    if not FLOORS * floor < CAP:  # the rounded program is broken
        floor = 0.0
        errors = {}
    if not exceeds_rounding(gap, floor):
        return GapLocation(gap, floor)

    def tolerance_at(cut: CutPoint) -> float:
        return max(tolerance, FLOORS * errors.get(cut, 0.0))

    theirs = reference.run(tokens_T, right.seen)
    replayed = other.run(tokens_T, right.seen)
    noisy = dict[str, list[CutPoint]]()
    for tap, once in ((reference, theirs), (other, replayed)):
        again = _compare_cuts(once, tap.run(tokens_T, right.seen))
        cuts = [one.end for one in again if one.error > _SAME]
        if cuts:
            noisy[tap.name] = cuts
    stretches = _compare_cuts(right, replayed)
    compared = {one.end: one.error for one in stretches}
    segments = [one for one in stretches if not one.error <= tolerance_at(one.end)]
    if not segments:
        return GapLocation(gap, floor, noisy=noisy, compared=compared)

    def measure_removed(some: Sequence[Segment]) -> float:
        forced = {one.end: right.seen[one.end] for one in some}
        left = measure_gap(right.logits, other.run(tokens_T, forced).logits, tokens_T)
        return share_removed(gap, left, floor)

    order = list(right.seen)
    chosen = _choose_fewest(segments, measure_removed)
    chosen.sort(key=lambda some: order.index(some[0].end))
    removed = measure_removed(_flatten_segments(chosen))
    places: list[FaultPlace] = []
    for some in chosen:
        end = some[0].end
        ends = theirs.seen[end], replayed.seen[end]
        values = {reference.name: ends[0], other.name: ends[1]}
        alone = removed if len(chosen) == 1 else measure_removed(some)
        opened = _trace_suspects(
            reference, other, tokens_T, right, some[0], ends, tolerance_at(end)
        )
        places.append(FaultPlace(some, alone, opened, values, exact.get(end), tolerance_at(end)))
    others = [one for one in segments if one not in _flatten_segments(chosen)]
    return GapLocation(gap, floor, places, removed, right.seen, noisy, others, compared)


def pick_logprobs(logits_TV: Tensor, tokens_T: Tensor) -> Tensor:
    """Returns the log-probabilities of the tokens from the second on, float64 [T - 1]."""
    return score_tokens(logits_TV[:-1].double().cpu(), tokens_T[1:].cpu())


def gives_numbers(found: PassCapture, tokens_T: Tensor) -> bool:
    """Returns whether all log-probabilities of the tokens are finite."""
    return bool(pick_logprobs(found.logits, tokens_T).isfinite().all())


def measure_rounding(
    witness: Tap,
    rounded: Sequence[Tap],
    tokens_T: Tensor,
    right: PassCapture,
    exact: Mapping[CutPoint, Tensor],
) -> tuple[float, dict[CutPoint, float]]:
    """Measures the rounding of one program in the types of both engines together: gap in nats, and
    relative error by cut.

    Args:
        witness: The program in float64; `exact` has its values with the values of `right` forced.
        rounded: The program in each engine's type.
        tokens_T: Token ids of one sequence.
    """
    plain = witness.run(tokens_T, {}).logits
    squares: dict[CutPoint, float] = {}
    gap = 0.0
    for tap in rounded:
        gap += measure_gap(plain, tap.run(tokens_T, {}).logits, tokens_T) ** 2
        for cut, value in tap.run(tokens_T, right.seen).seen.items():
            if cut in exact and exact[cut].numel() == value.numel():
                squares[cut] = squares.get(cut, 0.0) + find_error(exact[cut], value)[0] ** 2
    return gap**0.5, {cut: square**0.5 for cut, square in squares.items() if square < BROKEN**2}


def exceeds_rounding(gap: float, floor: float) -> bool:
    """Returns whether a gap exceeds rounding; without a measured floor any gap does."""
    return gap > (max(FLOORS * floor, LEAST) if floor else 0.0)


def share_removed(gap: float, left: float, floor: float) -> float:
    """Returns the removed share of the part of a gap that exceeds rounding."""
    if gap > floor:
        return min((gap - left) / (gap - floor), 1.0)
    return 0.0


def measure_gap(a_TV: Tensor, b_TV: Tensor, tokens_T: Tensor) -> float:
    """Returns the gap between the tokens' log-probabilities under two sets of logits."""
    return find_gap(pick_logprobs(a_TV, tokens_T), pick_logprobs(b_TV, tokens_T))


def _compare_cuts(right: PassCapture, replayed: PassCapture) -> list[Segment]:
    """Returns the segments between cuts that both engines have, in the reference's order."""
    found: list[Segment] = []
    before: CutPoint | None = None
    missing: list[CutPoint] = []
    for cut, value in right.seen.items():
        own = replayed.seen.get(cut)
        if own is None and replayed.is_hidden(cut):
            continue
        if own is None or value.numel() != own.numel():
            missing += [cut] if own is None else []
            continue
        # of the same module's outputs
        is_second = bool(found) and cut.stage.startswith(f"{found[-1].end.stage}.")
        if is_second:
            start = found[-1].start
        else:
            start = before
        found.append(Segment(start, cut, *find_error(value, own), tuple(missing)))
        if missing and found[-1].error <= _SAME:
            continue  # a parallel branch that does not read the missing values
        before = cut
        missing = []
    return found


def _choose_fewest(
    segments: Sequence[Segment], undo: Callable[[Sequence[Segment]], float]
) -> list[list[Segment]]:
    """Returns the smallest set of segment kinds that removes the gap; the same segment in all
    layers is one kind.

    Kinds are added by decreasing error until the gap is gone; then unneeded kinds are dropped, and
    unneeded outputs of a module.
    """
    kinds: dict[str, list[Segment]] = {}
    for one in segments:
        kinds.setdefault(_SEVERAL.sub("", one.end.stage), []).append(one)
    chosen = list[list[Segment]]()
    removed = 0.0
    for kind in sorted(kinds.values(), key=lambda some: -max(one.error for one in some)):
        chosen.append(kind)
        removed = undo(_flatten_segments(chosen))
        if removed > ENOUGH:
            break
    if removed <= 0:
        return chosen[:1]  # cannot tell which are needed
    for kind in list(chosen):
        fewer = [one for one in chosen if one is not kind]
        if fewer and undo(_flatten_segments(fewer)) >= min(ENOUGH, removed):
            chosen = fewer
    for number, kind in enumerate(chosen):
        for stage in dict.fromkeys(one.end.stage for one in kind):
            fewer = [one for one in chosen[number] if one.end.stage != stage]
            if fewer and undo(
                _flatten_segments([*chosen[:number], fewer, *chosen[number + 1 :]])
            ) >= min(ENOUGH, removed):
                chosen[number] = fewer
    return chosen


def _flatten_segments(kinds: Sequence[Sequence[Segment]]) -> list[Segment]:
    return list(chain.from_iterable(kinds))


def _trace_suspects(
    reference: Tap,
    other: Tap,
    tokens_T: Tensor,
    right: PassCapture,
    segment: Segment,
    ends: tuple[Tensor, Tensor],
    tolerance: float,
) -> list[Suspect]:
    """Returns the first operators of a segment that differ, alternating between the engines.

    Operators that lead to the values at its end come first. The trace starts at the segment's last
    common ancestor. If a suspect reads a differing value made before the layers, such as a mask,
    the operators that made it are included. If no operator ran, as in a skipped layer, the suspect
    is the function around the segment.
    """
    forced = {cut: value for cut, value in right.seen.items() if cut != segment.end}
    start = _find_fork(list(right.seen), segment)
    theirs = reference.trace(tokens_T, forced, start, segment.end)
    own = other.trace(tokens_T, forced, start, segment.end)
    around = list[Suspect]()
    for tap, trace in ((other, own), (reference, theirs)):
        if trace.around:
            around.append(Suspect(tap.name, operator_around(trace)))
    makers = [*find_makers(own, ends[1:]), *find_makers(theirs, ends[:1])]
    has_early = any(one.early for one in own.operators)
    have_both_early = has_early and any(one.early for one in theirs.operators)

    def is_possible(one: Operator) -> bool:
        return not one.early or (have_both_early and one in makers)

    here = list(filter(is_possible, find_suspects(own, theirs, ends[1:], tolerance)))
    there = list(filter(is_possible, find_suspects(theirs, own, ends[:1], tolerance)))
    here = order_suspects(here, makers, own)
    there = order_suspects(there, makers, theirs)
    is_made_by_one = any(one.early for one in there) and not any(one.early for one in here)
    if segment.missing or is_made_by_one:
        less = reference.functions(tokens_T) - other.functions(tokens_T)
        here, there = (
            [find_caller(one, less) if segment.missing or one.early else one for one in some]
            for some in (here, there)
        )
    sides = [(other, here), (reference, there)]
    if segment.missing:  # the reference's come first
        sides.reverse()
    found = list[Suspect]()
    for pair in zip_longest(sides[0][1], sides[1][1]):
        for (tap, _), one in zip(sides, pair, strict=True):
            if one is not None:
                found.append(Suspect(tap.name, one))
    # one engine skips what the other one runs
    if segment.missing or (found and not here and own.around):
        return [*around[:1], *found]
    if (number := find_other_number(own, theirs)) and not any(
        one.operator == number[1] for one in found
    ):
        trace, operator = number
        # the other engine skips it: blame the function that should have called it
        if trace is theirs:
            operator = find_caller(
                operator, reference.functions(tokens_T) - other.functions(tokens_T)
            )
        found.insert(2, Suspect((other if trace is own else reference).name, operator))
    if found:
        return found
    moved = find_rearranged(own, theirs, tolerance)
    # If every value is in order, the wrong one is passed on after the last operator.
    ended = list[Suspect]()
    for tap, trace in ((other, own), (reference, theirs)):
        for one in reversed(trace.operators):
            if not one.name.startswith(("doctor.", "aten.alias")):
                ended.append(Suspect(tap.name, one))
                break
    if moved:
        return [Suspect(other.name, moved), *ended]
    return [*around, *ended]


def _find_fork(order: Sequence[CutPoint], segment: Segment) -> CutPoint | None:
    """The last cut before a segment's end that every value passes; queries, keys and values are
    parallel branches.
    """
    if segment.start is None or segment.start.layer is None:
        return segment.start
    earlier = reversed(order[: order.index(segment.start) + 1])
    return next(
        (cut for cut in earlier if cut.stage in TRUNK and cut.layer == segment.start.layer),
        segment.start,
    )
