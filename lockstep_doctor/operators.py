"""The operators of one segment: what each read and gave, and the line of Python that called it."""

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
"""Operators whose numbers mean nothing before another one writes there."""

_KEYS = {"cpu": torch._C.DispatchKey.CPU, "cuda": torch._C.DispatchKey.CUDA}


@dataclass(frozen=True)
class Frame:
    """A line of Python.

    Attributes:
        file: Its path.
        line: Its number.
        function: The function that it is in, with its class.
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
        stack: The lines that called it, innermost first; only those of models.
        inputs: Indices into the values of the trace.
        outputs: The same.
        scalars: The other arguments, in order.
        early: True if it ran before the layers, for a segment that begins in one.
    """

    name: str
    stack: tuple[Frame, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    scalars: tuple[Any, ...]
    early: bool = False


@dataclass
class OperatorTrace:
    """A graph of operators over values.

    Attributes:
        values: Copies of all tensors, on the CPU, as they were when they were made.
        operators: In order.
        around: The lines of functions that ran from before the start to after the end, innermost
            first: they decide what runs between.
        split: Tokens of the sequence, and how many of them were read together, before the others;
            None: all were.
    """

    values: list[Tensor] = field(default_factory=list)
    operators: list[Operator] = field(default_factory=list)
    around: tuple[Frame, ...] = ()
    split: tuple[int, int] | None = None

    def external(self) -> list[int]:
        """Returns the values that no operator of the trace made: inputs, weights, constants."""
        made = {value for one in self.operators for value in one.outputs}
        return [value for value in range(len(self.values)) if value not in made]


class Recorder(TorchDispatchMode):
    """Records operators while it is `on`, each call of the model into a trace of its own.

    Args:
        opened: Namespaces of operators that are written in Python: what they call is recorded in
            their place.
    """

    def __init__(self, opened: Sequence[str] = ()) -> None:
        super().__init__()
        self.on = False
        self.early = False
        self._opened = opened
        self._entered = 0
        self._around: tuple[Frame, ...] = ()
        self._outside: list[FrameType] = []
        self.restart()

    def __enter__(self) -> Recorder:
        self._entered += 1
        if self._entered == 1:
            self._outside = list(_active())
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._entered -= 1
        if not self._entered:
            self._outside = []
            self._begun = []

    def restart(self) -> None:
        """Drops what was recorded; begins here."""
        self._begun = self._inside()
        self._values: list[Tensor] = []
        self._calls = [OperatorTrace(self._values)]
        self._index: dict[int, tuple[int, int]] = {}
        self._alive: list[Tensor] = []
        self._writes: dict[int, tuple[int, int]] = {}
        self._called = False

    @contextmanager
    def pause(self) -> Iterator[None]:
        """A context in which nothing is recorded."""
        on = self.on
        self.on = False
        try:
            yield
        finally:
            self.on = on

    def begin(self, early: bool) -> None:
        """Begins the trace of a call; the first has what was recorded before it, such as a mask
        that it is given.
        """
        self.on = True
        self.early = early
        if self._called:
            self._calls.append(OperatorTrace(self._values))
        self._called = True

    def begin_early(self) -> None:
        """Records what runs before the model is called."""
        self.on = self.early = True

    def end_early(self) -> None:
        """Notes that the layers begin."""
        self.on = self.on and not self.early
        self.early = False

    def give(self, value: Tensor) -> None:
        """Notes that a value was overwritten from outside: what follows from it follows from
        nothing before.
        """
        if self.on:
            with self.pause():
                self._note_writes([value])
                given = Operator(
                    "doctor.given.default",
                    tuple(find_frames()),
                    (),
                    (self._add(value),),
                    (),
                    self.early,
                )
            self._calls[-1].operators.append(given)

    def start(self) -> None:
        """Notes that the segment begins."""
        self.on, self.early, self._begun = True, False, self._inside()

    def end(self) -> None:
        """Notes that the segment ends."""
        if self.on:
            self._around = tuple(
                frame_of(frame) for frame in self._inside() if frame in self._begun
            )
        self.on = False

    def join(self) -> OperatorTrace:
        """Returns the traces of all calls as one, see `join_traces`."""
        return replace(
            join_traces([call for call in self._calls if call.operators]), around=self._around
        )

    def _inside(self) -> list[FrameType]:
        """The functions that are being executed, but for those that called the model."""
        return [frame for frame in _active(2) if frame not in self._outside]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self.on:
            return func(*args, **kwargs)
        leaves = tree_leaves((args, kwargs))
        if func.namespace in self._opened:
            device = next(x.device.type for x in leaves if isinstance(x, Tensor))
            with self:
                return func.redispatch(torch._C.DispatchKeySet(_KEYS[device]), *args, **kwargs)
        inputs = tuple(self._find(x) for x in leaves if isinstance(x, Tensor))
        outcome = func(*args, **kwargs)
        given = [x for x in tree_leaves(outcome) if isinstance(x, Tensor)]
        written = find_writes(func, args, kwargs)
        self._note_writes(written)
        outputs = tuple(map(self._add, given or written))
        scalars = tuple(x for x in leaves if isinstance(x, int | float | bool | torch.dtype))
        self._calls[-1].operators.append(
            Operator(str(func), tuple(find_frames()), inputs, outputs, scalars, self.early)
        )
        return outcome

    def _note_writes(self, written: list[Tensor]) -> None:
        """Notes that memory has other numbers from now on; the value of the operator that comes is
        one of them.
        """
        for memory in {_memory(x) for x in written}:
            self._writes[memory] = (self._writes.get(memory, (0, 0))[0] + 1, len(self._values))

    def _find(self, tensor: Tensor) -> int:
        """The value that a tensor has now; a view of what was written elsewhere follows from
        that.
        """
        writes, written = self._writes.get(_memory(tensor), (0, 0))
        known, then = self._index.get(id(tensor), (-1, -1))
        if known >= 0 and (then == writes or torch.equal(self._values[known], _copy(tensor))):
            return known
        value = self._add(tensor)
        if writes:
            self._calls[-1].operators.append(
                Operator(
                    "aten.alias.default",
                    tuple(find_frames(3)),
                    (written,),
                    (value,),
                    (),
                    self.early,
                )
            )
        return value

    def _add(self, tensor: Tensor) -> int:
        self._alive.append(tensor)  # an id is of one tensor only as long as that is alive
        value = len(self._values)
        self._index[id(tensor)] = (value, self._writes.get(_memory(tensor), (0, 0))[0])
        self._values.append(_copy(tensor))
        return value


def _copy(tensor: Tensor) -> Tensor:
    """The numbers that a tensor has now, on the CPU."""
    own = _local(tensor).cpu()
    is_tiny = (
        own.is_floating_point() and own.itemsize == 1
    )  # torch neither compares nor sorts numbers of 8 bits
    if is_tiny:
        return own.float()
    return own.clone()


def _local(tensor: Tensor) -> Tensor:
    own = tensor.detach()
    if isinstance(own, DTensor):
        own = own.to_local()
    else:
        own = own
    if isinstance(own, AsyncCollectiveTensor):
        return own.trigger_wait()
    return own


def _memory(tensor: Tensor) -> int:
    return _local(tensor).untyped_storage().data_ptr()


def find_writes(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """Returns the arguments that an operator writes its results to."""
    named = zip([one.name for one in func._schema.arguments], args, strict=False)
    values = dict(named) | kwargs
    written = [
        values.get(one.name)
        for one in func._schema.arguments
        if one.alias_info and one.alias_info.is_write
    ]
    return [x for x in written if isinstance(x, Tensor)]


def find_frames(depth: int = 2) -> Iterator[Frame]:
    """The lines of models that are being executed, innermost first; `depth` frames are the
    recorder's own.
    """
    yield from map(frame_of, _active(depth + 1))


def _active(depth: int = 1) -> Iterator[FrameType]:
    """The functions of models that are being executed, innermost first."""
    yield from callers(sys._getframe(depth))


def callers(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame of a model, and those that called it, innermost first."""
    while frame is not None:
        if is_model_file(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def frame_of(frame: FrameType) -> Frame:
    """The line that a frame executes."""
    return Frame(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname)


def is_model_file(file: str) -> bool:
    """True for a file of an engine or model: neither Python's own, nor torch's, nor ours."""
    inside = file.startswith(_STDLIB) and "site-packages" not in file
    return not (inside or file.startswith((_OWN, _TORCH, "<")))


def join_traces(parts: Sequence[OperatorTrace]) -> OperatorTrace:
    """Returns one trace of parts that run the same operators, on some of the tokens or on one of
    the ranks each.

    Operators are the same where they have the same name and lines and come equally often before. A
    value that is equal in all parts is kept once; those of the parts are laid end to end otherwise.
    """
    if len(parts) < 2:
        if parts:
            return parts[0]
        return OperatorTrace()
    joined = OperatorTrace(around=parts[0].around)
    places = dict[tuple[int, int], int]()
    same: dict[tuple[object, ...], list[tuple[int, Operator]]] = {}
    for number, part in enumerate(parts):
        met: Counter[object] = Counter()
        for one in part.operators:
            key = (one.name, one.stack)
            same.setdefault((*key, met[key]), []).append((number, one))
            met[key] += 1

    def place(several: Sequence[tuple[int, int]]) -> Sequence[int]:
        """The indices of a value that parts know by these indices: one, or those of the operators
        that made it.
        """
        new = [one for one in several if one not in places]
        if new:
            places.update(dict.fromkeys(new, len(joined.values)))
            joined.values.append(
                _lay_end_to_end([parts[part].values[index] for part, index in new])
            )
        return list(dict.fromkeys(places[one] for one in several))

    def place_all(
        some: Sequence[tuple[int, Operator]], of: Callable[[Operator], Sequence[int]]
    ) -> tuple[int, ...]:
        found = zip(*([(part, index) for index in of(one)] for part, one in some), strict=False)
        return tuple(chain.from_iterable(map(place, found)))

    for some in same.values():
        ends = [place_all(some, of) for of in (lambda one: one.inputs, lambda one: one.outputs)]
        joined.operators.append(replace(some[0][1], inputs=ends[0], outputs=ends[1]))
    return joined


def chain_traces(parts: Sequence[OperatorTrace]) -> OperatorTrace:
    """Returns one trace of parts that run one behind the other."""
    whole = OperatorTrace(around=next((part.around for part in parts if part.around), ()))
    for part in parts:
        known = len(whole.values)
        whole.values += part.values
        for one in part.operators:
            ends = [
                tuple(index + known for index in indices) for indices in (one.inputs, one.outputs)
            ]
            whole.operators.append(replace(one, inputs=ends[0], outputs=ends[1]))
    return whole


def _lay_end_to_end(pieces: Sequence[Tensor]) -> Tensor:
    first = pieces[0]
    if all(
        piece is first or (piece.shape == first.shape and torch.equal(piece, first))
        for piece in pieces[1:]
    ):
        return first
    return torch.cat([piece.reshape(-1) for piece in pieces])
