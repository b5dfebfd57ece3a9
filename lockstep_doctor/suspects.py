"""Finds operators of a segment that may be at fault, likeliest first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from lockstep_doctor.operators import UNSET, Operator, OperatorTrace
from lockstep_doctor.values import are_close, find_kind, same_values, sort_values


def find_suspects(
    own: OperatorTrace, other: OperatorTrace, ends: Sequence[Tensor], tolerance: float
) -> list[Operator]:
    """Returns the operators that read only values of the other trace, and return a value that it
    lacks.

    They are in order of execution. Early operators that do not lead to the end through values that
    the other trace lacks come last: engines may differ in values that only Python reads, such as
    lengths.

    Values that no operator of the trace made (inputs of the segment, weights, constants) count as
    right, so an operator that reads a differing weight is a suspect. A value that the other trace
    lacks, but that leads only to values that it has, is a different way to the same result and not
    a suspect.
    """
    outside = set(own.list_external())
    kinds = dict[int, tuple[bool, int]]()
    for index, value in enumerate(own.values):
        if value.numel() and index not in outside:
            kinds[index] = find_kind(value)
    theirs = list(other.values)
    tokens, first = own.split or (0, 0)
    for value in other.values:
        for dim, size in enumerate(value.shape):
            if size == tokens and 0 < first < tokens:  # own values: prefilled, and decoded
                theirs += value.split([first, tokens - first], dim)
    by_kind = {kind: list[Tensor]() for kind in kinds.values()}
    for value in theirs:
        alike = by_kind.get(find_kind(value))
        if alike is not None:
            alike.append(sort_values(value))
    good = [True] * len(own.values)
    for index, kind in kinds.items():
        value = sort_values(own.values[index])
        good[index] = any(are_close(value, x, tolerance) for x in by_kind[kind])
    for value in _find_unset(own):
        good[value] = True
    found = _find_first_bad(own, good)
    off = find_makers(own, ends, frozenset(value for value, is_good in enumerate(good) if is_good))
    return sorted(found, key=lambda one: one.early and one not in off)


def _find_first_bad(trace: OperatorTrace, good: list[bool]) -> list[Operator]:
    """Returns the operators that read only good values and return a bad one.

    A value that leads only to good values becomes good, too.
    """
    consumers: dict[int, list[Operator]] = {}
    for one in trace.operators:
        for value in one.inputs:
            consumers.setdefault(value, []).append(one)
    for one in reversed(trace.operators):
        for value in one.outputs:
            after = set[int]()
            for consumer in consumers.get(value, ()):
                after.update(consumer.outputs)
            after.discard(value)
            if after and all(good[output] for output in after):
                good[value] = True
    found = list[Operator]()
    for one in trace.operators:
        # an output that no operator reads has no effect if others are read
        outputs = [value for value in one.outputs if value in consumers] or one.outputs
        reads_good = all(good[value] for value in one.inputs)
        if reads_good and not all(good[value] for value in outputs):
            found.append(one)
    return found


def _find_unset(trace: OperatorTrace) -> set[int]:
    """Returns indices of uninitialized values."""
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
    """Returns the operators of a trace that lead to `values`, except through the values
    `without`.
    """
    wanted = set[int]()
    for index, value in enumerate(trace.values):
        if any(same_values(value, x, tolerance=0.0) for x in values):
            wanted.add(index)
    makers: list[Operator] = []
    for one in reversed(trace.operators):
        if not wanted.isdisjoint(one.outputs):
            wanted.update(value for value in one.inputs if value not in without)
            makers.append(one)
    return makers[::-1]


def find_other_number(
    own: OperatorTrace, other: OperatorTrace
) -> tuple[OperatorTrace, Operator] | None:
    """Returns the first operator before the layers with different integer outputs, and its trace.

    Python may read integers such as sizes without an operator. Both engines must run the same
    operators up to there; if one skips some, the result is the first skipped one.
    """
    some = [one for one in own.operators if one.early]
    its = [one for one in other.operators if one.early]
    unset = _find_unset(own)
    for index, (one, right) in enumerate(zip(some, its, strict=False)):
        if one.name != right.name:
            if index:
                return other, right
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
    """Returns operators in order of suspicion.

    First the one in the layer that leads to the end, then early ones, which may be a different way
    to the same result, then the others. Operators that do not lead to the end and read only values
    made outside the segment, such as weights, come last.
    """
    outside = set(trace.list_external())
    idle = [one for one in some if one not in makers and outside.issuperset(one.inputs)]
    found = sorted((one for one in some if one not in idle), key=lambda one: one not in makers)
    inside = [one for one in found if not one.early]
    early = [one for one in found if one.early]
    return [*inside[:1], *early, *inside[1:], *idle]


def operator_around(trace: OperatorTrace) -> Operator:
    """Returns the functions around a segment as one operator."""
    return Operator("call", trace.around, (), (), ())


def find_caller(operator: Operator, less: Counter[str]) -> Operator:
    """Returns an operator whose stack starts at the caller of a function that runs less often in
    the other engine.
    """
    missing = [index for index, frame in enumerate(operator.stack) if frame.function in less]
    return replace(operator, stack=operator.stack[max(missing, default=-1) + 1 :] or operator.stack)


def find_rearranged(own: OperatorTrace, other: OperatorTrace, tolerance: float) -> Operator | None:
    """Returns the first operator that returns its numbers in a different order, or that the other
    engine does not run.
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
