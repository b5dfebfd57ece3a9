"""The place of a disagreement between two engines: segments that give other values for the same inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from torch import Tensor

from lockstep_doctor.cuts import Capture, CutPoint
from lockstep_doctor.operators import Frame, Operator, first_rearranged, suspects
from lockstep_doctor.tap import Tap

ENOUGH = 0.9
"""Share of the gap whose removal proves a place."""

LOOSE = 5e-5
"""Relative error up to which two fp32 programs may round differently."""

FLOORS = 3.0
"""So many times what rounding makes is no rounding any more."""

_SAME = 1e-7
_ROW = 1e-5
_MOST_NATS = 3.0


@dataclass(frozen=True)
class Segment:
    """A stretch between two cuts that gives other values for the same inputs.

    Attributes:
        start: The cut before it; None: the ids.
        end: The cut behind it.
        error: |difference| over |value| at the end, root mean squares, given the reference's inputs.
        first: The first position that differs.
        missing: Cuts between them that the reference has and the other engine did not come by.
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
    """An operator that read equal values and gave another one.

    Attributes:
        engine: In which it ran.
        operator: With the lines that called it, innermost first.
    """

    engine: str
    operator: Operator


@dataclass(frozen=True)
class Place:
    """Segments that end at the same stage of several layers, and what was seen of the first of them.

    Attributes:
        segments: In order of execution.
        removed: Share of the gap that is gone when their ends alone have the reference's values.
        suspects: Operators of the first segment, the likeliest first.
        operators: All that ran in the first segment, in either engine.
        values: By engine, the first segment's end, given the same inputs.
        exact: The same in float64; None: there is no witness of this cut.
        tolerance: Relative error of the first segment's end that rounding explains.
    """

    segments: Sequence[Segment]
    removed: float
    suspects: Sequence[Suspect]
    operators: Sequence[Operator]
    values: Mapping[str, Tensor]
    exact: Tensor | None
    tolerance: float

    @property
    def errors(self) -> dict[str, float]:
        """By engine, the relative error of the first segment's end against float64, given the same inputs."""
        exact = self.exact
        if exact is None:
            return {}
        return {name: _differ(exact, own)[0] for name, own in self.values.items() if own.numel() == exact.numel()}

    @property
    def wrong(self) -> list[str]:
        """The engines that are farther from float64 than rounding explains."""
        return [name for name, error in self.errors.items() if error > self.tolerance]


@dataclass(frozen=True)
class Location:
    """Result of `locate`.

    Attributes:
        gap: Root mean square difference of log-probabilities, nats.
        floor: Of what rounding makes in the types of both engines; 0: it was not measured.
        places: The fewest whose undoing removes the gap, in order of execution; two faults are two places.
        removed: Share of the gap that is gone when all their ends have the reference's values.
        seen: The reference's values.
        noisy: By engine, cuts that give other values each time, for the same inputs.
    """

    gap: float
    floor: float = 0.0
    places: Sequence[Place] = ()
    removed: float = 0.0
    seen: Mapping[CutPoint, Tensor] = field(default_factory=dict)
    noisy: Mapping[str, Sequence[CutPoint]] = field(default_factory=dict)

    @property
    def disagrees(self) -> bool:
        """True if rounding does not explain the gap."""
        return self.gap > FLOORS * self.floor

    @property
    def segments(self) -> list[Segment]:
        """Those of all places."""
        return [one for place in self.places for one in place.segments]

    @property
    def suspects(self) -> Sequence[Suspect]:
        """Of the first place."""
        return self.places[0].suspects if self.places else ()

    @property
    def errors(self) -> Mapping[str, float]:
        """Of the first place."""
        return self.places[0].errors if self.places else {}

    @property
    def operators(self) -> Sequence[Operator]:
        """Of the first place."""
        return self.places[0].operators if self.places else ()

    @property
    def tolerance(self) -> float:
        """Of the first place."""
        return self.places[0].tolerance if self.places else LOOSE


@dataclass(frozen=True)
class Rounding:
    """What rounding makes of one sequence.

    Attributes:
        gap: Nats.
        errors: Relative, of each cut given the same inputs.
    """

    gap: float = 0.0
    errors: Mapping[CutPoint, float] = field(default_factory=dict)


def locate(
    reference: Tap,
    other: Tap,
    tokens_T: Tensor,
    witness: Tap | None = None,
    tolerance: float = LOOSE,
    rounded: Sequence[Tap] = (),
) -> Location:
    """Finds the places where two engines disagree about one sequence.

    The other engine reads the sequence with the reference's value at every cut, so that each segment is given the same
    inputs in both. Segments whose outputs differ are undone, alone and together, until the gap is gone; in the first of
    each kind the operators of both engines are compared.

    Args:
        reference: The engine that the other one is compared with.
        other: The engine that is examined.
        tokens_T: Ids of one sequence.
        witness: The model in float64, which says who is wrong.
        tolerance: Relative error of a cut that two fp32 programs may have.
        rounded: The witness's program in the types of the engines: how far it is from the witness is the noise floor.
    """
    right = reference.run(tokens_T, {})
    gap = nats(right.logits, other.run(tokens_T, {}).logits, tokens_T)
    rounding = Rounding() if witness is None else measure_rounding(witness, rounded, tokens_T, right)

    def explained(cut: CutPoint) -> float:
        return max(tolerance, FLOORS * rounding.errors.get(cut, 0.0))

    theirs, replayed = (tap.run(tokens_T, right.seen) for tap in (reference, other))
    noisy = {
        tap.name: cuts
        for tap, once in ((reference, theirs), (other, replayed))
        if (cuts := [one.end for one in _compare(once, tap.run(tokens_T, right.seen)) if one.error > _SAME])
    }
    segments = [one for one in _compare(right, replayed) if not one.error <= explained(one.end)]
    if not gap or not segments:
        return Location(gap, rounding.gap, noisy=noisy)

    def undo(some: Sequence[Segment]) -> float:
        forced = {one.end: right.seen[one.end] for one in some}
        return 1 - nats(right.logits, other.run(tokens_T, forced).logits, tokens_T) / gap

    order = list(right.seen)
    chosen = sorted(_choose_fewest(segments, undo), key=lambda some: order.index(some[0].end))
    removed = undo(_flat(chosen))
    exact = {} if witness is None else witness.run(tokens_T, right.seen).seen
    places: list[Place] = []
    for some in chosen:
        end = some[0].end
        suspected, ran = _open(reference, other, tokens_T, right, some[0], explained(end))
        values = {reference.name: theirs.seen[end], other.name: replayed.seen[end]}
        alone = removed if len(chosen) == 1 else undo(some)
        places.append(Place(some, alone, suspected, ran, values, exact.get(end), explained(end)))
    return Location(gap, rounding.gap, places, removed, right.seen, noisy)


def measure_rounding(witness: Tap, rounded: Sequence[Tap], tokens_T: Tensor, right: Capture) -> Rounding:
    """Measures how far one program is from itself in float64, in the types of both engines together.

    Args:
        witness: In float64.
        rounded: In each type.
        tokens_T: Ids of one sequence.
        right: The values that all are given.
    """
    exact, plain = witness.run(tokens_T, right.seen).seen, witness.run(tokens_T, {}).logits
    squares: dict[CutPoint, float] = {}
    gap = 0.0
    for tap in rounded:
        gap += nats(plain, tap.run(tokens_T, {}).logits, tokens_T) ** 2
        for cut, value in tap.run(tokens_T, right.seen).seen.items():
            if cut in exact and exact[cut].numel() == value.numel():
                squares[cut] = squares.get(cut, 0.0) + _differ(exact[cut], value)[0] ** 2
    return Rounding(gap**0.5, {cut: square**0.5 for cut, square in squares.items()})


def nats(a_TV: Tensor, b_TV: Tensor, tokens_T: Tensor) -> float:
    """Returns the root mean square difference of the log-probabilities of the tokens, each at most 3 nats."""
    first, second = (x[:-1].double().log_softmax(-1).gather(-1, tokens_T[1:, None]) for x in (a_TV, b_TV))
    off = (first - second).nan_to_num(_MOST_NATS).clamp(-_MOST_NATS, _MOST_NATS)
    return float(off.square().mean().sqrt())


def _compare(right: Capture, replayed: Capture) -> list[Segment]:
    """The stretches between cuts that both engines have, in the reference's order."""
    found: list[Segment] = []
    before: CutPoint | None = None
    missing: list[CutPoint] = []
    for cut, value in right.seen.items():
        own = replayed.seen.get(cut)
        if own is None and replayed.hides(cut):
            continue
        if own is None or value.numel() != own.numel():
            missing.append(cut)
            continue
        is_second = bool(found) and cut.stage.startswith(f"{found[-1].end.stage}.")  # of the same module's outputs
        start = found[-1].start if is_second else before
        found.append(Segment(start, cut, *_differ(value, own), tuple(missing)))
        if missing and found[-1].error <= _SAME:
            continue  # another branch, which does not read what is missing
        before, missing = cut, []
    return found


def _differ(right: Tensor, own: Tensor) -> tuple[float, int]:
    """Relative error, and the first position that has one."""
    width = right.shape[-1] if right.ndim > 1 else 1
    first, second = (x.detach().double().cpu().reshape(-1, width) for x in (right, own))
    off, scale = (first - second).nan_to_num(1e3), float(first.square().mean().sqrt()) or 1.0
    rows = (off.square().mean(-1).sqrt() > _ROW * scale).nonzero()
    return float(off.square().mean().sqrt()) / scale, int(rows[0, 0]) if len(rows) else 0


def _choose_fewest(segments: Sequence[Segment], undo: Callable[[Sequence[Segment]], float]) -> list[list[Segment]]:
    """The fewest kinds of segments that remove the gap; the same stretch in all layers is one kind.

    Kinds are added, the largest error first, while something is left of the gap; then those that are not needed go.
    """
    kinds: dict[str, list[Segment]] = {}
    for one in segments:
        kinds.setdefault(one.end.stage, []).append(one)
    chosen, removed = list[list[Segment]](), 0.0
    for kind in sorted(kinds.values(), key=lambda some: -max(one.error for one in some)):
        chosen.append(kind)
        removed = undo(_flat(chosen))
        if removed > ENOUGH:
            break
    for kind in list(chosen):
        fewer = [one for one in chosen if one is not kind]
        if fewer and undo(_flat(fewer)) >= min(ENOUGH, removed):
            chosen = fewer
    return chosen


def _flat(kinds: Sequence[Sequence[Segment]]) -> list[Segment]:
    return [one for kind in kinds for one in kind]


def _open(
    reference: Tap, other: Tap, tokens_T: Tensor, right: Capture, segment: Segment, tolerance: float
) -> tuple[list[Suspect], list[Operator]]:
    """The operators of a segment that begin to differ, of both engines in turn; and all that ran there."""
    forced = {cut: value for cut, value in right.seen.items() if cut != segment.end}
    theirs, own = (tap.trace(tokens_T, forced, segment.start, segment.end) for tap in (reference, other))
    ran = [*own.operators, *theirs.operators]
    here = [Suspect(other.name, one) for one in suspects(own, theirs, tolerance)]
    there = [Suspect(reference.name, one) for one in suspects(theirs, own, tolerance)]
    pairs = zip_longest(there, here) if segment.missing else zip_longest(here, there)
    found = [one for pair in pairs for one in pair if one is not None]
    if segment.missing:
        less = reference.functions(tokens_T) - other.functions(tokens_T)
        return [replace(one, operator=_find_caller(one.operator, less)) for one in found], ran
    if found:
        return found, ran
    moved = first_rearranged(own, theirs, tolerance)
    # Where every value is there in its place, another one of them is handed on.
    last = [Suspect(reference.name, one) for one in theirs.operators[-1:]]
    return ([Suspect(other.name, moved)] if moved else last), ran


def _find_caller(operator: Operator, less: Counter[str]) -> Operator:
    """The same with the lines from the one on that calls what runs less often in the other engine."""
    missing = [place for place, frame in enumerate(operator.stack) if frame.function in less]
    stack: tuple[Frame, ...] = operator.stack[max(missing, default=-1) + 1 :]
    return replace(operator, stack=stack or operator.stack)
