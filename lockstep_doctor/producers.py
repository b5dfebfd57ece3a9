"""Makers of the tables and numbers that a segment reads, where they are measured not to be the other engine's."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from lockstep_doctor.operators import UNSET, Operator, OperatorTrace, find_first_bad
from lockstep_doctor.values import MASKED

_CLOSE, _SAME = 2e-5, 1e-6
"""Absolute error of a table's numbers, and relative error of a setting, up to which two programs may round."""

_PLAIN = (0.0, 1.0, -1.0)


def find_producers(
    own: OperatorTrace, other: OperatorTrace, wrong: Sequence[Operator], tokens: int, numbers: Collection[float]
) -> list[Operator]:
    """Returns what built the tables and numbers that a segment reads and another engine has not.

    A table, such as the cosines of all positions, is right if its numbers, up to the last token, are those of tables of
    the other engine, or of what that computes before the layers. Of a wrong one, the operators that begin to be wrong
    come first, then where their numbers come from; the first has the lines of all others. What is right is left out,
    and so are all tables where none of the other engine are known to compare them with.

    Args:
        own: Of the engine, with what built its tables.
        other: Of the other engine.
        wrong: The operators of the segment that begin to differ, the likeliest first.
        tokens: Tokens of the sequence.
        numbers: Settings of the other engine.
    """
    if not wrong:
        return []
    theirs = [*other.operators, *_of_tables(other)]
    known = sorted({*_PLAIN, *numbers, *_scalars(theirs)})
    counts = {float(x) for one in theirs for x in one.scalars if type(x) is int}
    final = [_sort(one, tokens) for one in _find_final(other)]
    right = [*final, *(_sort(one, tokens) for table in other.tables.values() for one in table.values[:-1])]
    read = {value for one in other.operators if not one.early for value in one.inputs}
    early = {value for one in other.operators if one.early for value in one.outputs}
    handed_on = [_sort(other.values[value], tokens) for value in early & read]
    plain, found = torch.tensor(known, dtype=torch.float64), list[Operator]()
    for value, table in own.tables.items() if other.tables else ():
        if not table.values[-1].is_floating_point() or not any(value in one.inputs for one in own.operators):
            continue
        if table.operators[-1].name.startswith(UNSET):
            alike = [one for one in other.tables.values() if one.values[-1].shape == table.values[-1].shape]
            fills = [replace(one.operators[-1], name="fills what nothing fills here") for one in alike]
            found += [*fills, *table.operators]
            continue
        good = _check_table([_sort(one, tokens) for one in table.values], right, final, handed_on, plain)
        if good[-1]:
            continue
        first = find_first_bad(table, good)
        ran = tuple(dict.fromkeys(frame for one in reversed(table.operators) for frame in one.stack))
        found += [replace(one, lines=ran) for one in first]
        found += _origins(own, first, [*known, *counts])
        every = torch.cat(final).unique() if final else plain
        given = {x for one in first[:1] for x in one.inputs if not _is_among(_sort(table.values[x], tokens), every)}
        found += [one for one in table.operators if not given.isdisjoint(one.outputs)]  # right before another step
    found += _origins(own, wrong[:2], [*known, *counts])
    return list(dict.fromkeys(found))


def _check_table(
    values: Sequence[Tensor],
    right: Sequence[Tensor],
    final: Sequence[Tensor],
    handed_on: Sequence[Tensor],
    known: Tensor,
) -> list[bool]:
    """Returns which values of a table's making have the numbers of a right one, all of them and no others.

    A single number is right if it is known. The table itself, and what it is copied from, may have those of several
    final ones. What the other engine hands on has to be in it, if it is in a value that it was made of.
    """
    wanted = [one for one in handed_on if any(_is_among(one, value) for value in values)]

    def is_right(value: Tensor) -> bool:
        inside = [known if len(value) < 2 else known[:0], *(one for one in final if _is_among(one, value))]
        return _is_among(value, torch.cat(inside).unique()) and all(_is_among(one, value) for one in wanted)

    good = [
        _is_among(value, known)
        if len(value) < 2
        else is_right(value) or any(_is_among(one, value) and _is_among(value, one) for one in right)
        for value in values[:-1]
    ]
    table = values[-1]
    same = [len(value) > 1 and _is_among(value, table) and _is_among(table, value) for value in values[:-1]]
    last = is_right(table)
    return [*(one and (last or not is_table) for one, is_table in zip(good, same, strict=True)), last]


def _origins(own: OperatorTrace, some: Sequence[Operator], known: Sequence[float]) -> Iterator[Operator]:
    """The lines that made numbers which operators were given, and which the other engine has not."""
    for number in dict.fromkeys(x for one in some for x in one.scalars if type(x) in (int, float)):
        if number in own.origins and not any(abs(number - one) <= _SAME * abs(one) for one in known):
            yield replace(own.origins[number], name=f"{own.origins[number].name}, which the other engine has not,")


def _scalars(some: Sequence[Operator]) -> Iterator[float]:
    yield from (x for one in some for x in one.scalars if isinstance(x, float))


def _of_tables(trace: OperatorTrace) -> list[Operator]:
    return [one for table in trace.tables.values() for one in table.operators]


def _find_final(trace: OperatorTrace) -> Iterator[Tensor]:
    """An engine's tables, and what it computes before the layers, but for masks."""
    early = (trace.values[value] for one in trace.operators if one.early for value in one.outputs)
    yield from (value for value in early if value.dtype != torch.bool)
    yield from (table.values[-1] for table in trace.tables.values())


def _sort(value: Tensor, tokens: int) -> Tensor:
    """The numbers of a value, of a table those of the first tokens, each once."""
    return (
        (value[:tokens] if value.ndim else value).detach().flatten().double().nan_to_num(0.0, MASKED, -MASKED).unique()
    )


def _is_among(some: Tensor, others: Tensor) -> bool:
    """True if all of these sorted numbers are among others, up to rounding."""
    if not len(others) or not len(some):
        return not len(some)
    above = torch.searchsorted(others, some).clamp(max=len(others) - 1)
    near = torch.minimum((others[above] - some).abs(), (others[(above - 1).clamp(min=0)] - some).abs())
    return bool((near <= _CLOSE * some.abs().clamp(max=1.0) + _SAME * some.abs() + 1e-12).all())
