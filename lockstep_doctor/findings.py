"""Renders the result of an examination as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lockstep_doctor.examine import PairExamination
from lockstep_doctor.locate import FaultPlace, Segment

_LINES = 16
"""Number of stack lines kept per operator, innermost first; an engine's wrappers may take eight.
"""


def describe_examination(found: PairExamination) -> Iterator[str]:
    """Yields the report on two engines line by line."""
    location = found.location
    floor = ""
    if location.floor:
        floor = f"; rounding alone causes {location.floor:.2g}"
    yield (
        f"{found.reference} vs {found.other}: log-probabilities differ by {location.gap:.2g} nats "
        f"(root mean square) in request {found.request + 1} of {len(found.gaps)}{floor}"
    )
    yield from (f"  {line}" for line in found.columns)
    for engine, cuts in location.noisy.items():
        yield f"  {engine} is not deterministic at {', '.join(map(str, cuts[:4]))}"
    if found.agrees:
        yield "  Rounding in these types explains the difference."
        return
    if not location.disagrees:
        return
    if not location.places:
        yield "  No segment differs given the same inputs."
        return
    places = location.places
    what = "this"
    if len(places) > 1:
        what = f"these {len(places)} places"
    yield f"  correcting {what} removes {location.removed:.0%} of it:"
    for number, place in enumerate(places):
        yield from (f"  {line}" for line in describe_place(place))
        yield from (f"    {line}" for line in found.measured[number])
    if location.others:
        some = ", ".join(f"{one} ({one.error:.2g})" for one in location.others[:4])
        yield f"  other segments differ too, but cause little of the gap: {some}"


def describe_place(place: FaultPlace) -> Iterator[str]:
    """Yields the report on one place."""
    for segment in place.segments:
        missing = ""
        if segment.missing:
            missing = f"; {', '.join(map(str, segment.missing))} did not run"
        since = ""
        if segment.first:
            since = f", from position {segment.first} on"
        yield f"  {segment}: off by {segment.error:.2g} of its size{since}{missing}"
    for engine, error in place.engine_errors.items():
        yield f"  {engine} differs from float64 by {error:.2g} at {place.segments[0].end}"
    if place.engine_errors:
        match place.wrong_engines:
            case [one]:
                yield f"  {one} is wrong"
            case []:
                yield f"  neither is wrong: rounding explains {place.tolerance:.2g} here"
            case both:
                yield f"  {' and '.join(both)} are both wrong"
    for suspect in place.suspects[:3]:
        lines = list[str]()
        for frame in suspect.operator.stack[:2]:
            lines.append(f"{Path(frame.file).name}:{frame.line} {frame.function}")
        yield f"  {suspect.engine}: {suspect.operator.name} at {' ← '.join(lines)}"
    yield from _arguments_that_differ(place)


def _arguments_that_differ(place: FaultPlace) -> Iterator[str]:
    """Yields arguments that differ between the engines, for the first suspect operator."""
    for its in place.suspects:
        one = place.suspects[0]
        if one.engine == its.engine or one.operator.name != its.operator.name:
            continue
        for own, theirs in zip(one.operator.scalars, its.operator.scalars, strict=False):
            if own != theirs:
                yield f"  an argument is {own} in {one.engine} and {theirs} in {its.engine}"
        return


def tree_of(found: PairExamination) -> dict[str, Any]:
    """Returns the result of an examination, for JSON."""
    location = found.location
    places = list[dict[str, Any]]()
    for place, measured in zip(location.places, found.measured, strict=True):
        suspects = list[dict[str, Any]]()
        for suspect in place.suspects[:5]:
            one = suspect.operator
            lines = list(map(asdict, one.stack[:_LINES]))
            suspects.append({"engine": suspect.engine, "operator": one.name, "lines": lines})
        tree = {
            "segments": list(map(_tree_of_segment, place.segments)),
            "removed": place.removed,
            "tolerance": place.tolerance,
            "errors": place.engine_errors,
            "wrong": place.wrong_engines,
            "suspects": suspects,
            "measured": list(measured),
        }
        places.append(tree)
    return {
        "pair": [found.reference, found.other],
        "agrees": found.agrees,
        "gap": location.gap,
        "floor": location.floor,
        "removed": location.removed,
        "request": found.request,
        "gaps": list(found.gaps),
        "tokens": found.tokens.tolist(),
        "columns": list(found.columns),
        "noisy": {name: list(map(str, cuts)) for name, cuts in location.noisy.items()},
        "others": list(map(_tree_of_segment, location.others)),
        "cuts": {str(cut): error for cut, error in location.compared.items()},
        "places": places,
    }


def _tree_of_segment(one: Segment) -> dict[str, Any]:
    start = None if one.start is None else str(one.start)
    missing = list(map(str, one.missing))
    return asdict(one) | {"start": start, "end": str(one.end), "missing": missing}
