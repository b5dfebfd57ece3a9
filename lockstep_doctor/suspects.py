"""The operators of a segment that may be at fault, likeliest first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor

from lockstep_doctor.operators import UNSET, Operator, OperatorTrace
from lockstep_doctor.values import are_close, find_kind, same_values, sort_values


def suspects(
    own: OperatorTrace, other: OperatorTrace, ends: Sequence[Tensor], tolerance: float
) -> list[Operator]:
    """Returns the operators that were given values which the other trace has, and gave one that it
    has not.

    They are in order of execution, but for early ones from which no end follows by values that the
    other trace lacks: of what only Python reads, as it does lengths, one engine may have more than
    another.

    What no operator of the trace made (inputs of the segment, weights, constants) is taken for
    right, so an operator that reads a weight which differs is a suspect. A value that the other
    trace lacks, but from which only values follow that it has, is another way to the same result
    and no suspect.
    """
    outside = set(own.external())
    kinds = [
        find_kind(value) if value.numel() and place not in outside else None
        for place, value in enumerate(own.values)
    ]
    by_kind = {kind: list[Tensor]() for kind in kinds if kind}
    for value in chain(other.values, *(_split(value, own.split) for value in other.values)):
        alike = by_kind.get(find_kind(value))
        if alike is not None:
            alike.append(sort_values(value))
    good = [
        not kind or any(are_close(sort_values(value), x, tolerance) for x in by_kind[kind])
        for kind, value in zip(kinds, own.values, strict=True)
    ]
    for value in _find_unset(own):
        good[value] = True
    found = _find_first_bad(own, good)
    off = find_makers(own, ends, frozenset(value for value, is_good in enumerate(good) if is_good))
    return sorted(found, key=lambda one: one.early and one not in off)


def _find_first_bad(trace: OperatorTrace, good: list[bool]) -> list[Operator]:
    """Returns the operators that were given good values, and gave one that is not.

    A value from which only good ones follow becomes good, too.
    """
    consumers: dict[int, list[Operator]] = {}
    for one in trace.operators:
        for value in one.inputs:
            consumers.setdefault(value, []).append(one)
    for one in reversed(trace.operators):
        for value in one.outputs:
            after = [
                output
                for consumer in consumers.get(value, ())
                for output in consumer.outputs
                if output != value
            ]
            good[value] = good[value] or (bool(after) and all(good[output] for output in after))
    outside = set(trace.external())
    return [
        one
        for one in trace.operators
        if all(good[value] or value in outside for value in one.inputs)
        # A value that no operator reads, beside one that is read, has no effect.
        and not all(
            good[value] for value in ([x for x in one.outputs if x in consumers] or one.outputs)
        )
    ]


def _find_unset(trace: OperatorTrace) -> set[int]:
    """The values whose numbers mean nothing."""
    unset: set[int] = set()
    for one in trace.operators:
        follows = (
            bool(one.inputs)
            and unset.issuperset(one.inputs)
            and not one.name.split(".")[1].endswith("_")
        )
        if one.name.startswith(UNSET) or follows:
            unset.update(one.outputs)
    return unset


def find_makers(
    trace: OperatorTrace, values: Sequence[Tensor], without: Collection[int] = frozenset()
) -> list[Operator]:
    """Returns the operators of a trace from which values follow that it made, not by way of those
    `without`.
    """
    wanted = {
        index
        for index, value in enumerate(trace.values)
        if any(same_values(value, x, tolerance=0.0) for x in values)
    }
    makers: list[Operator] = []
    for one in reversed(trace.operators):
        if not wanted.isdisjoint(one.outputs):
            wanted.update(value for value in one.inputs if value not in without)
            makers.append(one)
    return makers[::-1]


def first_other_number(
    own: OperatorTrace, other: OperatorTrace
) -> tuple[OperatorTrace, Operator] | None:
    """Returns the first operator before the layers that gives other whole numbers, and whose it is.

    Python may have read them, as it does sizes, and what it does with them is no operator. Both
    engines have to run the same operators; where one of them leaves some out, it is the first of
    these.
    """
    some, its = ([one for one in trace.operators if one.early] for trace in (own, other))
    unset = _find_unset(own)
    for place, (one, right) in enumerate(zip(some, its, strict=False)):
        if one.name != right.name:
            if place:
                return (other, right)
            return None
        for a, b in zip(one.outputs, right.outputs, strict=False):
            first = own.values[a]
            second = other.values[b]
            if a not in unset and not first.is_floating_point() and not torch.equal(first, second):
                return own, one
    return None


def order_suspects(
    some: Sequence[Operator], makers: Sequence[Operator], trace: OperatorTrace
) -> list[Operator]:
    """Returns operators from which the ends follow first, early ones, which may be other ways to
    the same, second.

    Last are those that read only what the segment did not make, such as a weight, and from which no
    end follows.
    """
    outside = set(trace.external())
    idle = [one for one in some if one not in makers and outside.issuperset(one.inputs)]
    found = sorted((one for one in some if one not in idle), key=lambda one: one not in makers)
    inside, early = ([one for one in found if one.early == kind] for kind in (False, True))
    return [*inside[:1], *early, *inside[1:], *idle]


def say_around(trace: OperatorTrace) -> Operator:
    """Returns the functions around a segment, as if they were one operator."""
    return Operator("call", trace.around, (), (), ())


def find_caller(operator: Operator, less: Counter[str]) -> Operator:
    """Returns the same with the lines from the one on that calls what runs less often in the other
    engine.
    """
    missing = [place for place, frame in enumerate(operator.stack) if frame.function in less]
    return replace(operator, stack=operator.stack[max(missing, default=-1) + 1 :] or operator.stack)


def first_rearranged(own: OperatorTrace, other: OperatorTrace, tolerance: float) -> Operator | None:
    """Returns the first operator that gives the same numbers in another order, or that the other
    engine has not.
    """
    for one, its in zip(own.operators, other.operators, strict=False):
        if one.name != its.name:
            return one
        for a, b in zip(one.outputs, its.outputs, strict=False):
            first = own.values[a].double()
            second = other.values[b].double()
            if first.shape != second.shape or not torch.allclose(
                first, second, rtol=tolerance, atol=tolerance
            ):
                return one
    return None


def _split(value: Tensor, split: tuple[int, int] | None) -> Iterator[Tensor]:
    """Yields what a value has of the tokens that another engine read first, and of the others."""
    tokens, first = split or (0, 0)
    for dim in (
        dim for dim, size in enumerate(value.shape) if size == tokens and 0 < first < tokens
    ):
        yield value.narrow(dim, 0, first)
        yield value.narrow(dim, first, tokens - first)
