"""Tensors that are known again by their numbers, however these are laid out: who gave or had them, who lost them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from types import CodeType

import torch
from torch import Tensor

from lockstep_doctor.operators import Frame, Operator

_FEWEST, _FLOATS = 16, (torch.float64, torch.float32, torch.bfloat16, torch.float16)
"""Numbers of a tensor that is known again by their sum, and the types that it may have."""

_CHUNK = 1 << 15
"""So many numbers are summed at once, for which their copy in float64 stays in the processor's cache."""

_Sum = tuple[int, str]
"""Count of a tensor's numbers and their sum, which stays when they are laid out otherwise."""


@dataclass(frozen=True)
class Sighting:
    """An operator that gave some numbers.

    Attributes:
        operator: It may give a view of them.
        calls: Numbers of the calls in its stack.
        number: Of the operator that wrote them, -1 if none was seen; None: a function has them.
    """

    operator: Operator
    calls: list[int]
    number: int | None


class Sightings:
    """Operators that gave tensors, and functions that had them, by the numbers of these."""

    def __init__(self) -> None:
        self._sums: dict[tuple[object, ...], _Sum | None] = {}
        self._seen: dict[_Sum, list[Sighting]] = {}
        self._lines: dict[_Sum, dict[tuple[CodeType, int], None]] = {}
        self._in_hand: _Sum | None = None

    def is_known(self, tensor: Tensor) -> bool:
        """True for numbers that no others have."""
        return _sum_of(tensor) is not None

    def find(self, tensor: Tensor) -> list[Sighting]:
        """Returns who gave these numbers, or had them, in order; empty for those that others may have, too."""
        return self._seen.get(_sum_of(tensor) or (0, ""), [])

    def find_ways(self, tensor: Tensor, dtypes: Iterable[torch.dtype]) -> list[list[Sighting]]:
        """Returns the same in one of these types, or else as it is, for each tensor with these numbers.

        The way of each begins where it was read, as the first was.
        """
        forms = [*(tensor.to(one) for one in dtypes if one in _FLOATS), tensor]
        seen, starts = next(filter(None, map(self.find, forms)), []), dict[int | None, int]()
        for place, one in enumerate(seen):
            if (one.operator.name, one.operator.stack[:1]) == (seen[0].operator.name, seen[0].operator.stack[:1]):
                starts.setdefault(one.number, place)
        return [seen[start:end] for start, end in pairwise([*starts.values(), len(seen)])]

    def find_like(self, last: Sighting) -> list[list[Sighting]]:
        """Returns the ways of other numbers by the line where some were seen last, those of the same call first."""
        here, call = last.operator.stack[:1], last.calls[:1]
        ways = [
            way for way in self._seen.values() if way[-1] is not last and here in [x.operator.stack[:1] for x in way]
        ]
        return sorted(ways, key=lambda way: call not in [one.calls[:1] for one in way])

    def find_lines(self, operators: Collection[int | None]) -> list[Frame]:
        """Returns the lines that ran while a function had numbers that one of these operators had written."""
        some = [one for one, seen in self._seen.items() if any(x.number in operators for x in seen)]
        ran = dict.fromkeys(line for one in some for line in self._lines.get(one, ()))
        return [Frame(code.co_filename, line, code.co_qualname) for code, line in ran]

    def note(self, tensor: Tensor, memory: object, sighting: Sighting) -> None:
        """Notes that an operator gave these numbers, or that a function has them.

        Args:
            tensor: Of which it gave them.
            memory: Key of the memory where they lie, which another one has after each write.
            sighting: The operator.
        """
        if tensor.dtype not in _FLOATS or tensor.is_meta or tensor.numel() < _FEWEST:
            return
        key = _key(tensor, memory)
        if key not in self._sums:
            self._sums[key] = _sum_of(tensor)
        found = self._sums[key]
        if found is None:
            return
        seen = self._seen.setdefault(found, [])
        if not seen or seen[-1].operator is not sighting.operator:
            seen.append(sighting)
        if sighting.number is None:
            self._in_hand = found

    def recall(self, tensor: Tensor, memory: object) -> list[Sighting]:
        """Returns who gave or had these numbers, as far as they lie where an operator gave them."""
        return self._seen.get(self._sums.get(_key(tensor, memory)) or (0, ""), [])

    def note_line(self, code: CodeType, line: int) -> None:
        """Notes that a line runs, for the numbers that a function got last."""
        if self._in_hand is not None:
            self._lines.setdefault(self._in_hand, {})[code, line] = None

    def forget_memory(self) -> None:
        """Drops what is known of memory: from now on nothing is noted."""
        self._sums.clear()
        self._in_hand = None


def _key(tensor: Tensor, memory: object) -> tuple[object, ...]:
    layout = () if tensor.is_contiguous() else tensor.stride()
    return memory, tensor.storage_offset(), tensor.numel(), layout, tensor.dtype


def find_gap(last: Sighting, ways: Sequence[Sequence[Sighting]]) -> list[Operator]:
    """Returns who may have lost numbers, between where they were seen last and what others came to next from there.

    First the function that was to hand them on to what calls both; then the loop that others came through, one by one.
    """
    own, nexts = last.operator, [after for way in ways if (after := _find_next(way, last)) is not None]
    if not nexts:
        return [replace(own, stack=own.stack[place:]) for place in range(0, len(own.stack), 2)]
    after = nexts[0]
    outer = next((place for place, one in enumerate(last.calls) if one in after.calls), len(last.calls))
    times = Counter(one for it in nexts for one in it.calls)
    loop = next((place for place, one in enumerate(after.calls) if times[one] > 1), 0)
    its = after.operator
    return [replace(own, stack=own.stack[max(outer - 1, 0) :]), replace(its, stack=its.stack[loop:]), own, its]


def _find_next(way: Sequence[Sighting], last: Sighting) -> Sighting | None:
    """The step of other numbers behind the one that is like `last`, in another function.

    Numbers come by a function in several calls, as by a generator for each module inside of another: the call that had
    both, or else their first.
    """
    here, function = last.operator.stack[:1], [frame.function for frame in last.operator.stack[:1]]
    calls = [one.calls[:1] for one in way if one.operator.stack[:1] == here]
    call = last.calls[:1] if last.calls[:1] in calls else calls[0]
    place = max(place for place, one in enumerate(way) if one.calls[:1] == call)
    return next((one for one in way[place:] if [x.function for x in one.operator.stack[:1]] != function), None)


def _sum_of(tensor: Tensor) -> _Sum | None:
    """None where others have the same sum: numbers that are not finite, or all alike."""
    dense = tensor.detach().permute(sorted(range(tensor.ndim), key=tensor.stride, reverse=True)).reshape(-1)
    total = math.fsum(float(chunk.sum(dtype=torch.float64)) for chunk in dense.split(_CHUNK))
    if not math.isfinite(total) or math.isclose(total, float(dense[0]) * len(dense), rel_tol=1e-9):
        return None
    return len(dense), f"{total:.8e}"
