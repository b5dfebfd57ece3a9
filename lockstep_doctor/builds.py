"""The comparison of two builds of a model: the first line of Python after which a value differs."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from lockstep_doctor.operators import Frame, frame_of, is_model_file


@dataclass(frozen=True)
class _Line:
    """A line that ran.

    Attributes:
        event: `call` (the line is the caller's), `line`, `return` or `exception`.
        frame: The line.
        held: The numbers that its function, and the object that it belongs to, held before it ran.
    """

    event: str
    frame: Frame
    held: Mapping[str, float]


def compare_builds(own: Callable[[], object], reference: Callable[[], object]) -> tuple[Frame, str] | None:
    """Returns the line after which a value of a build first differs, and the value's name; None where none does.

    Both builds have to run the same lines of models, as a file and its edited copy do. Names whose numbers differ
    between two builds of the reference, such as memory that nothing has set, are left out.

    Args:
        own: Builds the model that is examined.
        reference: Builds the one that is taken for right.
    """
    theirs, again = _watch(reference), _watch(reference)
    names = chain.from_iterable(_differing(*pair) for pair in zip(theirs, again, strict=False))
    return _first_difference(_watch(own), theirs, frozenset(names))


def _watch(build: Callable[[], object]) -> list[_Line]:
    """Runs `build`; returns every line of models that ran, without finalizers of what other code has left behind."""
    lines: list[_Line] = []
    outside = sys._getframe()

    def trace(frame: FrameType, event: str, value: Any) -> Any:
        if not is_model_file(frame.f_code.co_filename):
            return None
        held = dict(_numbers(frame.f_locals))
        if event == "return":
            held |= {f"return {name}": x for name, x in _numbers({"value": value})}
        lines.append(_Line(event, frame_of(_caller(frame, outside) if event == "call" else frame), held))
        return trace

    before, collects = sys.gettrace(), gc.isenabled()
    gc.collect()
    gc.disable()
    sys.settrace(trace)
    try:
        build()
    finally:
        sys.settrace(before)
        if collects:
            gc.enable()
    return lines


def _caller(frame: FrameType, outside: FrameType) -> FrameType:
    """The frame of a model that called; the frame itself where none did since `outside`."""
    caller = frame.f_back
    while caller is not None and caller is not outside and not is_model_file(caller.f_code.co_filename):
        caller = caller.f_back
    return frame if caller is None or caller is outside else caller


def _first_difference(own: list[_Line], other: list[_Line], noise: frozenset[str]) -> tuple[Frame, str] | None:
    last: dict[str, Frame] = {}
    for a, b in zip(own, other, strict=False):
        before = last.get(a.frame.function, a.frame)
        if (a.frame.function, a.frame.line) != (b.frame.function, b.frame.line):
            return before, "the path through the code"
        for name in _differing(a, b):
            if name not in noise:
                return (a.frame if a.event == "call" or name.startswith("return ") else before), name
        last[a.frame.function] = a.frame
    return None


def _differing(a: _Line, b: _Line) -> list[str]:
    return sorted(name for name in a.held.keys() | b.held.keys() if a.held.get(name) != b.held.get(name))


def _numbers(held: Mapping[str, object], of_tuples: bool = True) -> Iterator[tuple[str, float]]:
    """Numbers by name; a tensor stands for itself by a sum that depends on the order."""
    for name, x in held.items():
        match x:
            case bool() | int() | float():
                yield name, float(x)
            case Tensor() if x.device.type != "meta" and not isinstance(x, nn.Parameter):
                flat = x.detach().cpu().double().flatten()
                yield name, float((flat * torch.arange(1, flat.numel() + 1)).nan_to_num().sum())
            case tuple() if of_tuples:
                yield from _numbers({f"{name}[{place}]": one for place, one in enumerate(x)}, False)
            case nn.Module() if name == "self":
                own = {**x.__dict__, **x.__dict__.get("_buffers", {})}
                yield from _numbers({f"self.{key}": value for key, value in own.items()}, False)
            case _:
                pass
