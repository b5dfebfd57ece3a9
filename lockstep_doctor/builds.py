"""Makers of a model: the lines of Python that made its numbers and its tables, and that loaded its weights."""

from __future__ import annotations

import inspect
import os
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lockstep_doctor.operators import (
    UNSET,
    Frame,
    Operator,
    OperatorTrace,
    callers,
    find_writes,
    frame_of,
    is_model_file,
)
from lockstep_doctor.sightings import Sighting, Sightings, find_gap

_ROWS, _MOST = 1024, 1 << 24
"""So many rows are kept of a table, which locating reads no farther, and so many numbers."""

_SOURCES = ("aten.lift_fresh",)
"""Operators that hand on what no operator made, as `torch.tensor` does."""

_COPIES = ("aten.copy_", "aten.clone", "aten._to_copy")
"""Operators that give the numbers that they are given."""

_TRIVIAL = (0, 1, -1)

_NO_THREADS = "HF_DEACTIVATE_ASYNC_LOAD"
"""Variable that `transformers` reads when it loads."""

_REGISTRATIONS = (
    nn.modules.module.register_module_module_registration_hook,
    nn.modules.module.register_module_parameter_registration_hook,
)

Number = int | float


class BuildLog(TorchDispatchMode):
    """Record of a build, while it is entered.

    Attributes:
        failed: Whether watching has failed, which ends it and not the build.
        sightings: Who gave tensors, by their numbers.
    """

    def __init__(self) -> None:
        super().__init__()
        self.failed = False
        self.sightings = Sightings()
        self._readers: dict[Frame, Operator] = {}
        self._numbers: dict[Number, Operator] = {}
        self._latest: dict[Number, Frame] = {}
        self._recent: dict[Number, dict[Frame, None]] = {}
        self._returned: Number | None = None
        self._given: dict[StorageWeakRef, dict[Frame, None]] = {}
        self._places: dict[int, tuple[Frame, ...]] = {}
        self._operators: list[Operator] = []
        self._values: list[Tensor | None] = []
        self._current: dict[StorageWeakRef, int] = {}
        self._calls: list[list[int]] = []
        self._serials: dict[int, int] = {}
        self._models: dict[CodeType, bool] = {}
        self._serial = count(1)
        self._children: weakref.WeakKeyDictionary[nn.Module, dict[str, tuple[Frame, ...]]] = weakref.WeakKeyDictionary()

    def find_number(self, value: Number) -> Operator | None:
        """Returns the line that first made a number; None: none of a model did."""
        return self._numbers.get(value)

    def find_table(self, tensor: Tensor) -> OperatorTrace | None:
        """Returns the operators that made a tensor, of which it is the last value; None where it is no constant.

        Of memory that nothing has filled, it is the operator that took it.
        """
        last = self._current.get(memory_of(tensor))
        wanted = [] if last is None else self._find_sources(last)
        if wanted and all(self._operators[number].name.startswith((*UNSET, *_COPIES)) for number in wanted):
            return OperatorTrace([_keep(tensor)], [replace(self._operators[wanted[0]], inputs=(), outputs=(0,))])
        value = None if last is None else self._values[last]
        if value is None or not torch.equal(value, _keep(tensor)):
            return None
        places = {number: place for place, number in enumerate(wanted)}
        values = [one for number in wanted if (one := self._values[number]) is not None]
        operators = [
            replace(one, inputs=tuple(places[x] for x in one.inputs), outputs=tuple(places[x] for x in one.outputs))
            for one in (self._operators[number] for number in wanted)
        ]
        return OperatorTrace(values, operators)

    def find_fillers(self, model: nn.Module, names: Collection[str]) -> list[Operator]:
        """Returns what filled parameters, the last first; for one that was left out by the loop of others, that loop.

        Args:
            model: Which was built.
            names: Of the parameters.
        """
        last = {name: self._current.get(memory_of(x)) for name, x in model.named_parameters()}
        others = [number for name, number in last.items() if name not in names and number is not None]
        times = Counter(call for number in others for call in self._calls[number])
        usual = Counter(self._operators[number].stack[:1] for number in others).most_common(1)
        other = max((number for number in others if self._operators[number].stack[:1] == usual[0][0]), default=None)
        loops = [] if other is None else [place for place, one in enumerate(self._calls[other]) if times[one] > 1]
        found: list[Operator] = []
        for number in dict.fromkeys(last.get(name) for name in names):
            if number is not None and (other is None or not loops or self._is_inside(number, other, loops[0])):
                found += [self._operators[one] for one in reversed(self._find_sources(number))]
            elif other is not None:
                stack = self._operators[other].stack
                found += [Operator(f"fills others, not {names}", stack[place:], (), (), ()) for place in loops]
        return found

    def find_choice(self, model: nn.Module, path: str) -> Operator | None:
        """Returns the line that gave a model the module or the parameter at a path; None: it was not watched."""
        owner, _, name = path.rpartition(".")
        stack = self._children.get(model.get_submodule(owner), {}).get(name)
        return None if stack is None else Operator(f"chooses {path}", stack, (), (), ())

    def find_losers(self, owns: Sequence[Tensor], rights: Sequence[Tensor]) -> list[Operator]:
        """Returns what spoiled numbers or put them elsewhere; or where they were seen last, and who had to have them.

        Between both, they are lost by the function that was to hand them on. The first has all lines that ran while one
        had them.

        Args:
            owns: Tensors that a model has.
            rights: What should be there, as it was read or in the model's type.
        """
        made = [self._current[memory] for x in owns if (memory := memory_of(x)) in self._current]
        sources = sorted({one for number in made for one in self._find_sources(number)})
        dtypes = {x.dtype for x in owns}
        ways = [way for right in rights for way in self.sightings.find_ways(right, dtypes)]
        if not ways:
            are_known = any(map(self.sightings.is_known, rights))
            return [replace(one, name="reads others") for one in self._readers.values()] if are_known else []
        way = min(ways, key=lambda one: (one[-1].number in sources, len(one)))
        last, writer, follows = way[-1], [one.number for one in way if one.number is not None][-1], sources
        if writer not in sources and writer in self._places:  # in memory that a kernel has packed since
            follows = self._find_followers(writer)
        reached = [one.number for one in way if one.number in follows]
        after = [number for number in follows if number > max(reached, default=-1)]
        found = find_gap(last, self.sightings.find_like(last))
        if last.number in reached:
            found = [self._operators[(after or reached)[0]]]
        if writer in reached and writer in self._places and last.operator.stack != self._operators[writer].stack:
            found = [self._operators[number] for number in (writer, *after[:1])]  # all parts were there, in some order
        numbers = (writer, *follows) if reached else ()
        places = dict.fromkeys(place for number in numbers for place in self._places.get(number, ()))
        found[1:1] = [Operator("makes a place", (place,), (), (), ()) for place in places]
        lines = tuple(self.sightings.find_lines({one.number for way in ways for one in way} - {None}))
        return [replace(one, lines=() if place else lines) for place, one in enumerate(found)]

    def _find_followers(self, first: int) -> list[int]:
        """An operator, and those that follow from it, in order."""
        found = {first}
        for number in range(first + 1, len(self._operators)):
            if not found.isdisjoint(self._operators[number].inputs):
                found.add(number)
        return sorted(found)

    def _is_inside(self, number: int, other: int, place: int) -> bool:
        """True if an operator ran in the call that is so many lines outside of another one."""
        return self._calls[other][place] in self._calls[number]

    def _find_sources(self, last: int) -> list[int]:
        """The operators from which the value of one follows, in order."""
        wanted = {last}
        for number in range(last, -1, -1):
            if number in wanted:
                wanted.update(self._operators[number].inputs)
        return sorted(wanted)

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
        for number in (x for one in operators for x in one.scalars if type(x) in (int, float)):
            found = self.find_number(number)
            if found is not None:
                origins[number] = found
        return replace(trace, tables=tables, origins=origins)

    def __enter__(self) -> BuildLog:
        self._before = sys.gettrace()
        super().__enter__()
        self._hooks = [hook(self._note_child) for hook in _REGISTRATIONS]
        sys.settrace(self._trace)
        return self

    def __exit__(self, *error: Any) -> None:
        sys.settrace(self._before)
        super().__exit__(*error)
        for hook in self._hooks:
            hook.remove()
        self.sightings.forget_memory()

    def _note_child(self, owner: nn.Module, name: str, child: object) -> None:
        self._children.setdefault(owner, {})[name] = tuple(map(frame_of, callers(sys._getframe(1))))

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
        frames = list(callers(sys._getframe(1)))
        operator = Operator(str(func), tuple(map(frame_of, frames)), (), (), scalars)
        calls = [self._serials.get(id(one), 0) for one in frames]
        for x in scalars if inputs else ():
            if x in self._latest and x not in _TRIVIAL:
                makers = self._recent.get(x) or {self._latest[x]: None}
                self._given.setdefault(memory_of(inputs[0]), {}).update(makers)
        for one in written or fresh:
            self._note(func, operator, calls, inputs, one)
        for one in (*written, *(x for x in tree_leaves(outcome) if isinstance(x, Tensor))):
            written_by = self._current.get(memory_of(one), -1)
            self.sightings.note(one, self._mark(one), Sighting(operator, calls, written_by))
        return outcome

    def _note(self, func: Any, operator: Operator, calls: list[int], inputs: list[Tensor], given: Tensor) -> None:
        """Notes who made the numbers that memory has now, and these, where they follow from constants alone."""
        is_whole = given.numel() * given.element_size() == given.untyped_storage().nbytes()
        if operator.name.startswith("aten.copy_") and is_whole:
            inputs = inputs[1:]
        if operator.name.startswith(UNSET):
            inputs = []
        follows = [self._current.get(memory_of(x)) for x in inputs]
        sources = [one for one in follows if one is not None and self._values[one] is not None]
        is_constant = len(sources) == len(follows) and is_whole and given.numel() <= _MOST and not given.is_meta
        is_constant &= not operator.name.startswith(UNSET) and torch.Tag.nondeterministic_seeded not in func.tags
        number = len(self._values)
        self._values.append(_keep(given) if is_constant else None)
        known = tuple(one for one in follows if one is not None)
        self._operators.append(replace(operator, inputs=known, outputs=(number,)))
        self._calls.append(calls)
        self._current[memory_of(given)] = number
        if not is_whole:
            self._places[number] = tuple(self._given.get(memory_of(given), ()))
        self._given.clear()
        self._recent.clear()

    def _trace(self, frame: FrameType, event: str, value: Any) -> Callable[..., Any] | None:
        return self._try(self._watch, frame, event, value)

    def _try(self, trace: Callable[..., Any], *given: Any) -> Callable[..., Any] | None:
        """Calls a trace function, of which an error would end what is watched: it ends the watching."""
        try:
            return None if self.failed else trace(*given)
        except Exception:
            self.failed = True
            sys.settrace(self._before)
            return None

    def _watch(self, frame: FrameType, event: str, value: Any) -> Callable[..., Any] | None:
        code = frame.f_code
        if code not in self._models:
            self._models[code] = is_model_file(code.co_filename)
        if not self._models[code]:
            return None
        is_generator = bool(code.co_flags & inspect.CO_GENERATOR)  # which is called again for each of its values
        if not is_generator or code.co_code[frame.f_lasti + 1] == 0:  # RESUME's operand: 0 where it starts
            self._serials[id(frame)] = next(self._serial)
        if not is_generator:
            for x in frame.f_locals.values():
                self._hand(x, frame)
        before, line = dict(_numbers(frame)), frame.f_lineno
        keywords = [one for one in frame.f_locals.values() if type(one) is dict]
        given = {x for one in keywords for x in one.values() if type(x) in (int, float)}

        def note(frame: FrameType, event: str, value: Any) -> None:
            nonlocal before, line
            held, known = dict(_numbers(frame)), given.union(before.values())
            self._make((x for name, x in held.items() if before.get(name) != x), frame, line, known)
            before, line = held, frame.f_lineno
            self.sightings.note_line(frame.f_code, line)
            if event == "return":
                self._make([value] if type(value) in (int, float) else [], frame, line, set())
                if is_generator:
                    self._hand_over(value, frame)
            self._returned = value if event == "return" and type(value) in (int, float) else None

        return partial(self._try, note)

    def _make(self, numbers: Iterable[Number], frame: FrameType, line: int, known: Collection[Number]) -> None:
        """Notes numbers that a function has made, and not only got from one that it called, or copied."""
        for number in numbers:
            if number not in self._numbers and not _is_import(frame):
                self._numbers[number] = Operator(f"the number {number:.6g}", _at(frame, line), (), (), ())
            if number not in self._latest or (number != self._returned and number not in known):
                self._latest[number] = replace(frame_of(frame), line=line)
                self._recent.setdefault(number, {})[self._latest[number]] = None

    def _hand(self, value: Any, frame: FrameType) -> None:
        """Notes that a function has a tensor now."""
        for x in value if isinstance(value, tuple) else (value,):
            if isinstance(x, Tensor) and self.sightings.recall(x, self._mark(x)):
                calls = [self._serials.get(id(one), 0) for one in callers(frame)]
                taken = Operator("has", _stack_of(frame), (), (), ())
                self.sightings.note(x, self._mark(x), Sighting(taken, calls, None))

    def _mark(self, tensor: Tensor) -> object:
        """A key of the memory of a tensor, which another one has after each write."""
        memory = memory_of(tensor)
        return memory, self._current.get(memory)

    def _hand_over(self, value: Any, frame: FrameType) -> None:
        """Notes that a generator gives a tensor away; one that gives it by its name may have read it."""
        match value:
            case (str(), Tensor() as tensor) if all(
                one.number is not None for one in self.sightings.recall(tensor, self._mark(tensor))
            ):
                reader = Operator("reads", _stack_of(frame), (), (), ())
                self._readers.setdefault(reader.stack[0], reader)
            case _:
                pass
        if frame.f_back is not None:
            self._hand(value, frame.f_back)


_LOGS: weakref.WeakKeyDictionary[nn.Module, BuildLog] = weakref.WeakKeyDictionary()


@contextmanager
def watch_build() -> Iterator[list[nn.Module]]:
    """Records in the block what builds and loads models, for those that are put into the list; if that can be."""
    models: list[nn.Module] = []
    log = BuildLog()
    with _in_one_thread(), log:
        yield models
    for model in () if log.failed else models:
        _LOGS[model] = log


def find_build(model: nn.Module) -> BuildLog | None:
    """Returns how a model was built, if that was watched."""
    return _LOGS.get(model)


@contextmanager
def _in_one_thread() -> Iterator[None]:
    """Has `transformers` load weights in the thread that asks for them, the only one that is watched."""
    before = os.environ.get(_NO_THREADS)
    os.environ[_NO_THREADS] = "1"
    try:
        yield
    finally:
        os.environ.pop(_NO_THREADS, None)
        if before is not None:
            os.environ[_NO_THREADS] = before


def _stack_of(frame: FrameType) -> tuple[Frame, ...]:
    """The lines of models that a frame and those that called it execute, innermost first."""
    return tuple(map(frame_of, callers(frame)))


def _is_import(frame: FrameType | None) -> bool:
    """True in code that an import runs, which the first build sets off and others find done."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def memory_of(tensor: Tensor) -> StorageWeakRef:
    """Returns a key of the memory that a tensor shares with its views; while it is kept, no other memory has it."""
    return StorageWeakRef(tensor.untyped_storage())


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
    first, *others = _stack_of(frame)
    return replace(first, line=line), *others
