"""Records the operators of a segment: inputs, outputs, and the Python lines that called them."""

from __future__ import annotations

import sys
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_OWN = str(Path(__file__).parent)
_TORCH = str(Path(torch.__file__).parent)
_STDLIB = sysconfig.get_path("stdlib")


UNSET = ("aten.empty", "aten.new_empty")
"""Operators that return uninitialized memory."""

_KEYS = {"cpu": torch._C.DispatchKey.CPU, "cuda": torch._C.DispatchKey.CUDA}


@dataclass(frozen=True)
class StackFrame:
    """A line of Python.

    Attributes:
        file: Path.
        line: Line number.
        function: Qualified name of the function.
    """

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


@dataclass(frozen=True)
class Operator:
    """One operator that ran.

    Attributes:
        name: As torch prints it, such as `aten.mm.default`.
        stack: Call stack, innermost line first; only lines of model code.
        inputs: Indices into the values of the trace.
        outputs: Indices into the values of the trace.
        scalars: Non-tensor arguments, in order.
        early: True if it ran before the layers, for a segment that starts in a layer.
    """

    name: str
    stack: tuple[StackFrame, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    scalars: tuple[Any, ...]
    early: bool = False


@dataclass
class OperatorTrace:
    """A graph of operators over values.

    Attributes:
        values: CPU copies of all tensors at the time of their creation.
        operators: Operators in order.
        around: Lines of functions that were active from before the start to after the end,
            innermost first; they decide what runs in between.
        split: Number of tokens, and number of prefilled ones; None if all were prefilled.
    """

    values: list[Tensor] = field(default_factory=list)
    operators: list[Operator] = field(default_factory=list)
    around: tuple[StackFrame, ...] = ()
    split: tuple[int, int] | None = None

    def list_external(self) -> list[int]:
        """Returns indices of values that no operator of the trace made: inputs, weights,
        constants.
        """
        made = set[int]().union(*(one.outputs for one in self.operators))
        return [value for value in range(len(self.values)) if value not in made]


class Recorder(TorchDispatchMode):
    """Records operators while `on`, with a separate trace for each call of the model.

    Args:
        opened: Namespaces of operators written in Python; the operators inside are recorded
            instead.
    """

    def __init__(self, opened: Sequence[str] = ()) -> None:
        super().__init__()
        self.on = False
        self.early = False
        self._opened = opened
        self._entered = 0
        self._around: tuple[StackFrame, ...] = ()
        self._outside: list[FrameType] = []
        self.restart_record()

    def __enter__(self) -> Recorder:
        self._entered += 1
        if self._entered == 1:
            self._outside = list(list_active())
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._entered -= 1
        if not self._entered:
            self._outside = []
            self._begun = []

    def restart_record(self) -> None:
        """Drops the record and starts again here."""
        self._begun = self._list_inside()
        self._values: list[Tensor] = []
        self._calls = [OperatorTrace(self._values)]
        self._index: dict[int, tuple[int, int]] = {}
        self._alive: list[Tensor] = []
        self._writes: dict[int, tuple[int, int]] = {}
        self._called = False

    @contextmanager
    def pause_recording(self) -> Iterator[None]:
        """Context in which nothing is recorded."""
        on = self.on
        self.on = False
        try:
            yield
        finally:
            self.on = on

    def begin_call(self, early: bool) -> None:
        """Starts the trace of a model call; the first one also has operators from before it, such
        as those of a mask.
        """
        self.on = True
        self.early = early
        if self._called:
            self._calls.append(OperatorTrace(self._values))
        self._called = True

    def begin_early(self) -> None:
        """Starts recording before the model is called."""
        self.on = self.early = True

    def end_early(self) -> None:
        """Notes that the layers start."""
        self.on = self.on and not self.early
        self.early = False

    def record_overwrite(self, value: Tensor) -> None:
        """Notes that a value was overwritten from outside, so it no longer depends on earlier
        operators.
        """
        if self.on:
            with self.pause_recording():
                self._note_writes([value])
                self._record_operator("doctor.given.default", (), (self._add_value(value),))

    def start_segment(self) -> None:
        """Notes that the segment starts."""
        self.on, self.early, self._begun = True, False, self._list_inside()

    def end_segment(self) -> None:
        """Notes that the segment ends."""
        if self.on:
            self._around = tuple(
                frame_of(frame) for frame in self._list_inside() if frame in self._begun
            )
        self.on = False

    def join_calls(self) -> OperatorTrace:
        """Returns the traces of all calls as one; see `join_traces`."""
        return replace(
            join_traces([call for call in self._calls if call.operators]), around=self._around
        )

    def _list_inside(self) -> list[FrameType]:
        """Active functions inside the model call."""
        return [frame for frame in list_active() if frame not in self._outside]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self.on:
            return func(*args, **kwargs)
        leaves = tree_leaves((args, kwargs))
        if func.namespace in self._opened:
            device = next(x.device.type for x in leaves if isinstance(x, Tensor))
            with self:
                return func.redispatch(torch._C.DispatchKeySet(_KEYS[device]), *args, **kwargs)
        inputs = tuple(self._find_value(x) for x in leaves if isinstance(x, Tensor))
        outcome = func(*args, **kwargs)
        given = [x for x in tree_leaves(outcome) if isinstance(x, Tensor)]
        written = find_writes(func, args, kwargs)
        self._note_writes(written)
        outputs = tuple(map(self._add_value, given or written))
        scalars = tuple(x for x in leaves if isinstance(x, int | float | bool | torch.dtype))
        self._record_operator(str(func), inputs, outputs, scalars)
        return outcome

    def _record_operator(
        self,
        name: str,
        inputs: tuple[int, ...],
        outputs: tuple[int, ...],
        scalars: tuple[Any, ...] = (),
    ) -> None:
        frames = tuple(map(frame_of, list_active()))
        self._calls[-1].operators.append(
            Operator(name, frames, inputs, outputs, scalars, self.early)
        )

    def _note_writes(self, written: list[Tensor]) -> None:
        """Notes a write to memory by the next operator."""
        for memory in set(map(_memory_address, written)):
            self._writes[memory] = (self._writes.get(memory, (0, 0))[0] + 1, len(self._values))

    def _find_value(self, tensor: Tensor) -> int:
        """Returns the index of a tensor's current value; a view of written memory depends on that
        write.
        """
        writes, written = self._writes.get(_memory_address(tensor), (0, 0))
        known, then = self._index.get(id(tensor), (-1, -1))
        if known >= 0 and (
            then == writes or torch.equal(self._values[known], _copy_numbers(tensor))
        ):
            return known
        value = self._add_value(tensor)
        if writes:
            self._record_operator("aten.alias.default", (written,), (value,))
        return value

    def _add_value(self, tensor: Tensor) -> int:
        self._alive.append(tensor)  # keeps the tensor alive, so that its id stays unique
        value = len(self._values)
        self._index[id(tensor)] = (value, self._writes.get(_memory_address(tensor), (0, 0))[0])
        self._values.append(_copy_numbers(tensor))
        return value


def _copy_numbers(tensor: Tensor) -> Tensor:
    """A CPU copy of a tensor's current numbers."""
    own = find_own_part(tensor).cpu()
    # torch cannot compare or sort 8-bit floats
    is_tiny = own.is_floating_point() and own.itemsize == 1
    if is_tiny:
        return own.float()
    return own.clone()


def find_own_part(tensor: Tensor) -> Tensor:
    """The part of a tensor on this process, detached."""
    own = tensor.detach()
    if isinstance(own, DTensor):
        own = own.to_local()
    if isinstance(own, AsyncCollectiveTensor):
        return own.trigger_wait()
    return own


def _memory_address(tensor: Tensor) -> int:
    return find_own_part(tensor).untyped_storage().data_ptr()


def find_writes(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """Returns the tensor arguments that an operator writes to."""
    named = zip([one.name for one in func._schema.arguments], args, strict=False)
    values = dict(named) | kwargs
    written = list[Tensor]()
    for one in func._schema.arguments:
        value = values.get(one.name)
        if one.alias_info and one.alias_info.is_write and isinstance(value, Tensor):
            written.append(value)
    return written


def list_active() -> Iterator[FrameType]:
    """Yields the active frames of model code, innermost first."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if is_model_file(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def frame_of(frame: FrameType) -> StackFrame:
    """The current line of a frame."""
    return StackFrame(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname)


def is_model_file(file: str) -> bool:
    """True for a file of an engine or model: not of Python, torch or this package."""
    inside = file.startswith(_STDLIB) and "site-packages" not in file
    return not (inside or file.startswith((_OWN, _TORCH, "<")))


def join_traces(parts: Sequence[OperatorTrace]) -> OperatorTrace:
    """Joins traces of the same operators on different tokens or ranks.

    Operators match by name, stack and occurrence. A value equal in all parts is kept once;
    otherwise the parts' values are concatenated.
    """
    if len(parts) < 2:
        if parts:
            return parts[0]
        return OperatorTrace()
    joined = OperatorTrace(around=parts[0].around)
    joined_index = dict[tuple[int, int], int]()
    same: dict[tuple[object, ...], list[tuple[int, Operator]]] = {}
    for number, part in enumerate(parts):
        met: Counter[object] = Counter()
        for one in part.operators:
            key = (one.name, one.stack)
            same.setdefault((*key, met[key]), []).append((number, one))
            met[key] += 1

    def place_value(several: Sequence[tuple[int, int]]) -> Sequence[int]:
        """Returns the joined indices of a value with these indices in the parts."""
        new = [one for one in several if one not in joined_index]
        if new:
            joined_index.update(dict.fromkeys(new, len(joined.values)))
            joined.values.append(
                _concatenate_pieces([parts[part].values[index] for part, index in new])
            )
        return list(dict.fromkeys(joined_index[one] for one in several))

    def place_all(
        some: Sequence[tuple[int, Operator]], of: Callable[[Operator], Sequence[int]]
    ) -> tuple[int, ...]:
        columns = list[list[tuple[int, int]]]()
        for part, one in some:
            columns.append([(part, index) for index in of(one)])
        return tuple(chain.from_iterable(map(place_value, zip(*columns, strict=False))))

    for some in same.values():
        inputs = place_all(some, lambda one: one.inputs)
        outputs = place_all(some, lambda one: one.outputs)
        joined.operators.append(replace(some[0][1], inputs=inputs, outputs=outputs))
    return joined


def chain_traces(parts: Sequence[OperatorTrace]) -> OperatorTrace:
    """Concatenates traces of parts that run one after another."""
    whole = OperatorTrace(around=next((part.around for part in parts if part.around), ()))
    for part in parts:
        known = len(whole.values)
        whole.values += part.values
        for one in part.operators:
            inputs = tuple(index + known for index in one.inputs)
            outputs = tuple(index + known for index in one.outputs)
            whole.operators.append(replace(one, inputs=inputs, outputs=outputs))
    return whole


def _concatenate_pieces(pieces: Sequence[Tensor]) -> Tensor:
    first = pieces[0]
    if all(
        piece is first or (piece.shape == first.shape and torch.equal(piece, first))
        for piece in pieces[1:]
    ):
        return first
    return torch.cat([piece.reshape(-1) for piece in pieces])
