"""Values that are right by themselves, and are handed on in another order than in another engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import torch

from lockstep_doctor.operators import Operator, OperatorTrace
from lockstep_doctor.values import repeats_values

_FEWEST = 3
"""Values that an operator reads as another engine's does, of which two may be swapped: a sum of two has no order."""


def first_rearranged(own: OperatorTrace, other: OperatorTrace, tolerance: float) -> Operator | None:
    """Returns the first operator that gives the same numbers in another order, or that the other engine has not."""
    for one, its in zip(own.operators, other.operators, strict=False):
        if one.name != its.name:
            return one
        for a, b in zip(one.outputs, its.outputs, strict=False):
            first, second = own.values[a].double(), other.values[b].double()
            if first.shape != second.shape or not torch.allclose(first, second, rtol=tolerance, atol=tolerance):
                return one
    return None


def first_swapped(
    own: OperatorTrace, other: OperatorTrace, wrong: Sequence[Operator], its: Sequence[Operator], tolerance: float
) -> list[Operator]:
    """Returns who handed on two values, as large as each other, the other way round; the likeliest first.

    It is on the way to the first operator that reads them so, behind the last one that reads them in the right order.

    Args:
        own: Of the engine.
        other: Of the other engine.
        wrong: Operators that were given right values, of this engine, the likeliest first.
        its: The other engine's, whose order of them is right.
        tolerance: Relative error up to which values are the same.
    """
    right = [other.values[value] for one in its[:1] for value in one.inputs]

    def find_order(one: Operator) -> list[int]:
        """Places of the values that an operator reads among those that are right, for those that are there once."""
        found = [
            [place for place, value in enumerate(right) if repeats_values(own.values[read], value, tolerance)]
            for read in one.inputs
        ]
        return list(dict.fromkeys(places[0] for places in found if len(places) == 1))

    def is_swapped(order: list[int]) -> bool:
        return any(a > b and right[a].numel() == right[b].numel() for a, b in pairwise(order))

    orders = [find_order(one) for one in wrong[:1]]
    if not any(len(order) >= _FEWEST and is_swapped(order) for order in orders):
        return []
    place = next(place for place, one in enumerate(own.operators) if is_swapped(find_order(one)))
    first, before = own.operators[place], [one for one in own.operators[:place] if len(find_order(one)) > 1]
    return [first, *before[-1:], replace(first, stack=first.stack[2:])]
