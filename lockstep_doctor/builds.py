"""What built a model: the lines of Python that made its numbers and its tables, and that loaded its weights."""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lockstep_doctor.operators import UNSET, Frame, Operator, OperatorTrace, find_writes, is_model_file, stack_of

_ROWS, _MOST = 1024, 1 << 24
"""So many rows are kept of a table, which locating reads no farther, and so many numbers."""

_SOURCES = ("aten.lift_fresh",)
"""Operators that hand on what no operator made, as `torch.tensor` does."""

_TRIVIAL = (0, 1, -1)

Number = int | float


@dataclass
class LoadedTensor:
    """A tensor of a checkpoint on its way into a model.

    Attributes:
        name: As the checkpoint has it.
        numel: Numbers that it has.
        written: Numbers of it that were written into other memory.
        takers: Functions that were handed all of it, in order.
        writes: Operators that wrote some of it, in order.
        scalars: Numbers that operators on it were given, such as where a part begins.
        made: Lines that first made a number while it was in hand.
        lines: All lines that ran while it was in hand.
    """

    name: str
    numel: int
    written: int = 0
    takers: list[Operator] = field(default_factory=list)
    writes: list[Operator] = field(default_factory=list)
    scalars: dict[Number, None] = field(default_factory=dict)
    made: dict[Number, Operator] = field(default_factory=dict)
    lines: dict[tuple[CodeType, int], None] = field(default_factory=dict)

    def suspects(self) -> list[Operator]:
        """Returns who may have loaded it wrongly: who had all of it last, what made its places, what wrote it."""
        made = {
            one.stack[0].function: one for number, one in self.made.items() if number in self.scalars.keys() - _TRIVIAL
        }
        places = list(reversed(made.values()))
        found = [*self.takers[-1:], *places[:2], *self.writes[-1:], *places[2:], *reversed(self.takers[:-1])]
        ran = tuple(Frame(code.co_filename, line, code.co_qualname) for code, line in self.lines)
        share = "" if self.written >= self.numel else f", of which {self.written} of {self.numel} numbers are written"
        what = f"{self.name}{share}: "
        return [replace(one, name=what + one.name, lines=ran if not place else ()) for place, one in enumerate(found)]


class BuildLog(TorchDispatchMode):
    """Record of a build, while it is entered.

    Attributes:
        loaded: By name, the tensors of the checkpoint.
    """

    def __init__(self) -> None:
        super().__init__()
        self.loaded: dict[str, LoadedTensor] = {}
        self._numbers: dict[Number, Operator] = {}
        self._operators: list[Operator] = []
        self._values: list[Tensor | None] = []
        self._current: dict[int, int] = {}
        self._makers: dict[int, int] = {}
        self._held: dict[int, tuple[weakref.ref[Tensor], LoadedTensor]] = {}
        self._in_hand: LoadedTensor | None = None
        self._models: dict[CodeType, bool] = {}

    def find_number(self, value: Number) -> Operator | None:
        """Returns the line that first made a number; None: none of a model did."""
        return self._numbers.get(value)

    def find_table(self, tensor: Tensor) -> OperatorTrace | None:
        """Returns the operators that made a tensor, of which it is the last value; None where it is no constant."""
        last = self._current.get(memory_of(tensor))
        value = None if last is None else self._values[last]
        if last is None or value is None or not torch.equal(value, _keep(tensor)):
            return None
        wanted, places = {last}, dict[int, int]()
        ran: list[Operator] = []
        for number in range(last, -1, -1):
            if number in wanted:
                ran.append(self._operators[number])
                wanted.update(self._operators[number].inputs)
        for number in sorted(wanted):
            places[number] = len(places)
        values = [one for number in places if (one := self._values[number]) is not None]
        operators = [
            replace(one, inputs=tuple(places[x] for x in one.inputs), outputs=tuple(places[x] for x in one.outputs))
            for one in reversed(ran)
        ]
        return OperatorTrace(values, operators)

    def explain(self, trace: OperatorTrace, model: nn.Module, tensors: Mapping[int, Tensor]) -> OperatorTrace:
        """Returns a trace with what made the tables and the numbers that it reads; weights are no tables.

        Args:
            trace: Of a pass of the model.
            model: Which was built.
            tensors: Those that it read and did not make, by the index of their value.
        """
        weights = set(map(memory_of, model.parameters()))
        tables = {
            value: one
            for value, tensor in tensors.items()
            if memory_of(tensor) not in weights and (one := self.find_table(tensor)) is not None
        }
        operators = [*trace.operators, *(one for table in tables.values() for one in table.operators)]
        origins: dict[float, Operator] = {}
        for number in (x for one in operators for x in one.scalars if isinstance(x, float)):
            found = self.find_number(number)
            if found is not None:
                origins[number] = found
        return replace(trace, tables=tables, origins=origins)

    def __enter__(self) -> BuildLog:
        self._before = sys.gettrace()
        super().__enter__()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *error: Any) -> None:
        sys.settrace(self._before)
        super().__exit__(*error)
        self._in_hand = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        outcome = func(*args, **kwargs)
        leaves = tree_leaves((args, kwargs))
        inputs = [x for x in leaves if isinstance(x, Tensor)]
        written = find_writes(func, args, kwargs)
        known = {memory_of(x) for x in inputs}
        fresh = [x for x in tree_leaves(outcome) if isinstance(x, Tensor) and memory_of(x) not in known]
        if str(func).startswith(_SOURCES) and not any(memory in self._current for memory in known):
            fresh, inputs = inputs, []
        scalars = tuple(x for x in leaves if isinstance(x, int | float))
        operator = Operator(str(func), tuple(stack_of(sys._getframe(1))), (), (), scalars)
        self._follow(operator, inputs, written, fresh)
        for one in written or fresh:
            self._note(func, operator, inputs, one)
        return outcome

    def _note(self, func: Any, operator: Operator, inputs: list[Tensor], given: Tensor) -> None:
        """Notes who made the numbers that memory has now, and these, where they follow from constants alone."""
        is_whole = given.numel() * given.element_size() == given.untyped_storage().nbytes()
        if operator.name.startswith("aten.copy_") and is_whole:
            inputs = inputs[1:]
        follows = [self._current.get(memory_of(x)) for x in inputs]
        sources = [one for one in follows if one is not None and self._values[one] is not None]
        is_constant = len(sources) == len(follows) and is_whole and given.numel() <= _MOST and not given.is_meta
        is_constant &= not operator.name.startswith(UNSET) and torch.Tag.nondeterministic_seeded not in func.tags
        number = len(self._values)
        self._values.append(_keep(given) if is_constant else None)
        self._operators.append(replace(operator, inputs=tuple(sources), outputs=(number,)))
        self._current[memory_of(given)] = number

    def _follow(self, operator: Operator, inputs: list[Tensor], written: list[Tensor], fresh: list[Tensor]) -> None:
        """Follows tensors of the checkpoint through an operator."""
        source = next((x for x in inputs if not any(x is y for y in written) and self._find(x) is not None), None)
        loaded = None if source is None else self._find(source)
        if source is None or loaded is None:
            return
        self._in_hand = loaded
        loaded.scalars.update(dict.fromkeys(operator.scalars))
        for one in written:
            if self._find(one) is not loaded:
                loaded.written += min(source.numel(), one.numel())
                loaded.writes.append(operator)
        for one in fresh:
            self._held[memory_of(one)] = weakref.ref(one), loaded

    def _find(self, tensor: Tensor) -> LoadedTensor | None:
        """The tensor of the checkpoint that lies in a tensor's memory, as long as that is alive."""
        first, loaded = self._held.get(memory_of(tensor), (None, None))
        return None if first is None or first() is None else loaded

    def _trace(self, frame: FrameType, event: str, value: Any) -> Callable[..., Any] | None:
        code = frame.f_code
        if code not in self._models:
            self._models[code] = is_model_file(code.co_filename)
        if not self._models[code]:
            return None
        if not code.co_flags & inspect.CO_GENERATOR:  # which is called again for each of its values
            for x in frame.f_locals.values():
                self._hand(x, frame)
        before, line = dict(_numbers(frame)), frame.f_lineno

        def note(frame: FrameType, event: str, value: Any) -> Callable[..., Any]:
            nonlocal before, line
            held = dict(_numbers(frame))
            self._make((held[name] for name in held.keys() - before.keys()), frame, line)
            self._make((x for name, x in held.items() if name in before and before[name] != x), frame, line)
            before, line = held, frame.f_lineno
            if self._in_hand is not None:
                self._in_hand.lines[frame.f_code, line] = None
            if event == "return":
                self._make([value] if type(value) in (int, float) else [], frame, line)
                if frame.f_code.co_flags & inspect.CO_GENERATOR:
                    self._hand_over(value, frame)
            return note

        return note

    def _make(self, numbers: Iterable[Number], frame: FrameType, line: int) -> None:
        """Notes numbers that a function has made."""
        for number in numbers:
            tables = [self._numbers] + ([] if self._in_hand is None else [self._in_hand.made])
            for table in tables:
                if number not in table:
                    table[number] = Operator(f"the number {number:.6g}", _at(frame, line), (), (), ())

    def _hand(self, value: Any, frame: FrameType) -> None:
        """Notes that a function has a tensor now."""
        for x in value if isinstance(value, tuple) else (value,):
            loaded = self._find(x) if isinstance(x, Tensor) else None
            if loaded is None:
                continue
            self._in_hand = loaded
            if x.numel() >= loaded.numel:
                loaded.takers.append(Operator("taken", tuple(stack_of(frame)), (), (), ()))

    def _hand_over(self, value: Any, frame: FrameType) -> None:
        """Notes that a generator gives a tensor away; the first one that gives it by its name has read it."""
        match value:
            case (str(name), Tensor() as tensor) if self._find(tensor) is None:
                loaded = self.loaded[name] = LoadedTensor(name, tensor.numel())
                self._held[memory_of(tensor)] = weakref.ref(tensor), loaded
            case _:
                pass
        if frame.f_back is not None:
            self._hand(value, frame.f_back)


_LOGS: weakref.WeakKeyDictionary[nn.Module, BuildLog] = weakref.WeakKeyDictionary()


@contextmanager
def watch_build() -> Iterator[list[nn.Module]]:
    """Records in the block what builds and loads models, for those that are put into the list."""
    models: list[nn.Module] = []
    log = BuildLog()
    with log:
        yield models
    for model in models:
        _LOGS[model] = log


def find_build(model: nn.Module) -> BuildLog | None:
    """Returns how a model was built, if that was watched."""
    return _LOGS.get(model)


def memory_of(tensor: Tensor) -> int:
    """Returns a number of the memory that a tensor shares with its views."""
    return tensor.untyped_storage()._cdata


def _keep(tensor: Tensor) -> Tensor:
    return (tensor.detach()[:_ROWS] if tensor.ndim else tensor.detach()).cpu().clone()


def _numbers(frame: FrameType) -> Iterator[tuple[str, Number]]:
    """Numbers that a function's variables hold, and the attributes of the object that it belongs to."""
    held = frame.f_locals
    for name, x in held.items():
        if type(x) in (int, float):
            yield name, x
    own = held.get("self")
    attributes: Mapping[str, Any] = object.__getattribute__(own, "__dict__") if type(own).__dictoffset__ else {}
    for name, x in attributes.items():
        if type(x) in (int, float):
            yield f"self.{name}", x


def _at(frame: FrameType, line: int) -> tuple[Frame, ...]:
    """The lines of models that are being executed, of which the innermost one has a line of its own."""
    first, *others = stack_of(frame)
    return replace(first, line=line), *others
