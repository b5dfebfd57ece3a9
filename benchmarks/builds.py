"""The comparison of two builds of a model: the first line of Python after which a value differs."""

from __future__ import annotations

import gc
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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
        held: The values that its function, and the object that it belongs to, held before it ran.
    """

    event: str
    frame: Frame
    held: Mapping[str, float]


@dataclass(frozen=True)
class BuildLog:
    """Lines that ran when a model was built, twice.

    Attributes:
        lines: In order.
        noise: Functions with names in them whose values were others the second time, such as addresses.
    """

    lines: Sequence[_Line]
    noise: frozenset[tuple[str, str]]


def watch_build(build: Callable[[], object]) -> BuildLog:
    """Builds a model twice, to compare others with it."""
    lines, again = _watch(build), _watch(build)
    noise = ((a.frame.function, name) for a, b in zip(lines, again, strict=False) for name in _differing(a, b))
    return BuildLog(lines, frozenset(noise))


def compare_builds(own: Callable[[], object], reference: Callable[[], object] | BuildLog) -> tuple[Frame, str] | None:
    """Returns the line after which a value of a build first differs, and the value's name; None where none does.

    Both builds have to run the same lines of models, as a file and its edited copy do. Memory that nothing has set is
    filled.

    Args:
        own: Builds the model that is examined.
        reference: Builds the one that is taken for right; or what `watch_build` saw of it.
    """
    log = reference if isinstance(reference, BuildLog) else watch_build(reference)
    return _first_difference(_watch(own), log)


def _watch(build: Callable[[], object]) -> list[_Line]:
    """Runs `build`; returns every line of models that ran, without finalizers of what other code has left behind."""
    lines: list[_Line] = []
    outside = sys._getframe()

    def trace(frame: FrameType, event: str, value: Any) -> Any:
        if not is_model_file(frame.f_code.co_filename):
            return None
        held = {sys.intern(name): x for name, x in _numbers(frame.f_locals)}  # there are millions of them
        if event == "return":
            held |= {f"return {name}": x for name, x in _numbers({"value": value})}
        lines.append(_Line(event, frame_of(_caller(frame, outside) if event == "call" else frame), held))
        return trace

    before, collects = sys.gettrace(), gc.isenabled()
    gc.collect()
    gc.disable()
    with _fill_memory():
        sys.settrace(trace)
        try:
            build()
        finally:
            sys.settrace(before)
            if collects:
                gc.enable()
    return lines


@contextmanager
def _fill_memory() -> Iterator[None]:
    """Context in which memory that nothing has set holds the same each time."""
    before = torch.get_deterministic_debug_mode()
    torch.use_deterministic_algorithms(True, warn_only=True)  # which fills it
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)


def _caller(frame: FrameType, outside: FrameType) -> FrameType:
    """The frame of a model that called; the frame itself where none did since `outside`."""
    caller = frame.f_back
    while caller is not None and caller is not outside and not is_model_file(caller.f_code.co_filename):
        caller = caller.f_back
    return frame if caller is None or caller is outside else caller


def _first_difference(own: Sequence[_Line], log: BuildLog) -> tuple[Frame, str] | None:
    last: dict[str, Frame] = {}
    for a, b in zip(own, log.lines, strict=False):
        before = last.get(a.frame.function, a.frame)
        if (a.frame.function, a.frame.line) != (b.frame.function, b.frame.line):
            return before, "the path through the code"
        for name in _differing(a, b):
            if (a.frame.function, name) not in log.noise:
                return (a.frame if a.event == "call" or name.startswith("return ") else before), name
        last[a.frame.function] = a.frame
    return None


def _differing(a: _Line, b: _Line) -> list[str]:
    return sorted(name for name in a.held.keys() | b.held.keys() if a.held.get(name) != b.held.get(name))


def _numbers(held: Mapping[str, object], inside: bool = True) -> Iterator[tuple[str, float]]:
    """Values by name, as numbers; a tensor stands for itself by a sum that depends on the order, and by its place."""
    for name, x in held.items():
        match x:
            case bool() | int() | float():
                yield name, float(x)
            case str():
                yield name, float(zlib.crc32(x.encode()))
            case torch.dtype():
                yield name, float(zlib.crc32(str(x).encode()))
            case Tensor():
                yield from _numbers_of(name, x.detach())
            case tuple() | list() if inside:
                yield from _numbers({f"{name}[{place}]": one for place, one in enumerate(x)}, False)
            case dict() if inside:
                plain = {f"{name}[{key}]": one for key, one in x.items() if isinstance(one, int | float)}
                yield from _numbers(plain, False)
            case nn.Module() if name == "self":
                own = {**x.__dict__, **x.__dict__.get("_buffers", {}), **x.__dict__.get("_parameters", {})}
                yield from _numbers({f"self.{key}": value for key, value in own.items()}, False)
            case _:
                pass


def _numbers_of(name: str, tensor: Tensor) -> Iterator[tuple[str, float]]:
    yield f"{name}.place", float(zlib.crc32(f"{tuple(tensor.shape)} {tensor.storage_offset()}".encode()))
    if tensor.device.type != "meta":
        flat = tensor.cpu().double().flatten()
        yield name, float((flat * torch.arange(1, flat.numel() + 1)).nan_to_num().sum())
