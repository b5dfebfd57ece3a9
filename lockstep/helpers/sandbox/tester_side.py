"""The side of a test, in a separate process, which asks a program for plain values.

Runs inside its own sandbox with only the standard library. Names that the program defines refer to
objects in the program's process: a call sends arguments as plain values and builds the result from
plain data, so comparisons involve no objects of the program. No message from that process is
trusted.
"""

from __future__ import annotations

import builtins
import os
import re
import sys
from collections.abc import Iterator
from symtable import SymbolTable, symtable
from typing import Any, NoReturn

from lockstep.helpers.sandbox.plain_values import (
    NoPlainValue,
    decode_value,
    encode_value,
    format_line,
    parse_line,
)
from lockstep.helpers.sandbox.solution_side import read_source, take_pipes

PASSED = 42
"""Exit status of a passed test; a test that ends its process has a different one."""


class FailedTest(BaseException):
    """The test has failed, even if it catches this."""


def run_test(file: int) -> NoReturn:
    """Runs the test in a file over its standard input and output."""
    side = _TesterSide(*take_pipes())
    os._exit(PASSED if side.passes_test(read_source(file).decode()) else 1)


class _TesterSide:
    """A test's connection to the program."""

    def __init__(self, answers: Any, questions: Any) -> None:
        self._answers = answers
        self._questions = questions
        self._things: dict[int, ProgramObject] = {}
        self._functions: list[Any] = []
        self._failed = False

    def passes_test(self, test: str) -> bool:
        """True if a test completes."""
        try:
            names = _TestNames(self, test)
            sys.modules["solution"] = _SolutionModule(names)  # type: ignore[assignment]
            exec(compile(test, "test.py", "exec", dont_inherit=True), names)
        except BaseException:
            return False
        return not self._failed

    def ask_program(self, verb: str, *arguments: Any, **named: Any) -> Any:
        """Asks the program for an operation; returns a plain value or a `ProgramObject`."""
        if self._failed:
            raise FailedTest
        self._send_message([verb, encode_value((arguments, named), self._make_reference)])
        while True:
            try:
                message = parse_line(self._answers.readline())
            except NoPlainValue:
                raise self._fail_test() from None
            match message:
                case ["callback", int(function), call] if 0 <= function < len(self._functions):
                    self._call_function(self._functions[function], *self._decode_call(call))
                case ["result", item, changed]:
                    if changed is not None:
                        _replace_all(arguments, named, *self._decode_call(changed))
                    return self._decode_value(item)
                case ["raised", list(kinds), str(text)]:
                    raise _build_error(verb, kinds, text)
                case _:
                    raise self._fail_test()

    def _fail_test(self) -> FailedTest:
        """Returns an exception that fails the test even if caught."""
        self._failed = True
        return FailedTest()

    def _call_function(
        self, function: Any, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> None:
        """Calls a function of the test for the program."""
        try:
            reply = ["returned", encode_value(function(*arguments, **named), self._make_reference)]
        except Exception as error:
            reply = ["raised", type(error).__name__, str(error)]
        self._send_message(reply)

    def _decode_call(self, item: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        match self._decode_value(item):
            case (tuple(arguments), dict(named)):
                return arguments, named
            case _:
                raise self._fail_test()

    def _decode_value(self, item: Any) -> Any:
        try:
            return decode_value(item, self._resolve_reference)
        except Exception:
            raise self._fail_test() from None

    def _make_reference(self, value: Any) -> list[Any]:
        if isinstance(value, ProgramObject):
            return ["thing", hash(value)]
        if not callable(value):
            raise self._fail_test()
        self._functions.append(value)
        return ["callback", len(self._functions) - 1]

    def _resolve_reference(self, item: list[Any]) -> Any:
        match item:
            case ["thing", int(number)]:
                return self._things.setdefault(number, ProgramObject(self, number))
            case ["callback", int(number)] if 0 <= number < len(self._functions):
                return self._functions[number]
            case _:
                raise NoPlainValue

    def _send_message(self, content: Any) -> None:
        try:
            self._questions.write(format_line(content))
            self._questions.flush()
        except OSError:
            raise self._fail_test() from None


class ProgramObject:
    """A program's value that is not plain: a function, class, object or iterator.

    It supports calls, attributes, items and iteration, which give plain values or other objects of
    this class. Comparison uses the plain value of an instance of a derived class, such as a named
    tuple; for other objects it raises an error.
    """

    _side: _TesterSide
    _number: int

    def __init__(self, side: _TesterSide, number: int) -> None:
        vars(self).update(_side=side, _number=number)

    def __getattr__(self, name: str) -> Any:
        # Python itself asks for these, and they change the meaning of others
        if name.startswith("_"):
            raise AttributeError(name)
        return self._side.ask_program("get", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._side.ask_program("set", self, name, value)

    def __hash__(self) -> int:
        """The number of this object on both sides."""
        return self._number

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ProgramObject):
            return self is other
        return self._side.ask_program("plain", self) == other


def _define_method(method: str, verb: str) -> None:
    """Defines a method of `ProgramObject` that asks the program."""

    def ask_side(self: ProgramObject, *arguments: Any, **named: Any) -> Any:
        return self._side.ask_program(verb, self, *arguments, **named)

    setattr(ProgramObject, method, ask_side)


for _verb in ("call", "getitem", "setitem", "iter", "next", "len", "str", "repr", "bool"):
    _define_method(f"__{_verb}__", _verb)


class _TestNames(dict):
    """The names of a test: its own, then Python's, then the program's.

    Only the test determines the meaning of names, so that a program cannot change its test:
    `sorted` in a test is Python's, even if the program defines one. Only if a test uses no other
    names can such a name refer to the program's function. The name of a standard module refers to
    the module if it has the attributes that the test uses.
    """

    def __init__(self, side: _TesterSide, test: str) -> None:
        super().__init__(__name__="solution", __builtins__=builtins)
        self._side = side
        self._test = test
        table = symtable(test, "test.py", "exec")
        own = set[str]()
        for symbol in table.get_symbols():
            if symbol.is_assigned() or symbol.is_imported():
                own.add(symbol.get_name())
        self._defined = frozenset(side.ask_program("import"))
        if not set(_find_globals(table)) - own <= vars(builtins).keys():
            self._defined -= vars(builtins).keys()

    def __missing__(self, name: str) -> Any:
        if name not in self._defined or name.startswith("_"):
            raise KeyError(name)
        attributes = re.findall(rf"\b{name}\.(\w+)", self._test)
        if attributes and name in sys.stdlib_module_names:
            module = __import__(name)
            if all(hasattr(module, attribute) for attribute in attributes):
                return module
        return self._side.ask_program("name", name)


def _find_globals(table: SymbolTable) -> Iterator[str]:
    """Finds the nonlocal names of a module and its functions."""
    yield from (symbol.get_name() for symbol in table.get_symbols() if symbol.is_global())
    for inner in table.get_children():
        yield from _find_globals(inner)


class _SolutionModule:
    """The module `solution`, for a test that imports from it."""

    def __init__(self, names: _TestNames) -> None:
        self._names = names

    def __getattr__(self, name: str) -> Any:
        try:
            return self._names.__missing__(name)
        except KeyError:
            raise AttributeError(name) from None


def _build_error(verb: str, kinds: list[Any], text: str) -> Exception:
    """The program's error as a built-in class; RuntimeError for one that would end a loop."""
    known = (vars(builtins).get(kind) for kind in kinds if type(kind) is str)
    found = next(
        (kind for kind in known if isinstance(kind, type) and issubclass(kind, Exception)),
        RuntimeError,
    )
    if issubclass(found, StopIteration | StopAsyncIteration) and verb != "next":
        found = RuntimeError
    return found.__new__(found, text)


def _replace_all(
    arguments: tuple[Any, ...],
    named: dict[str, Any],
    changed: tuple[Any, ...],
    changed_named: dict[str, Any],
) -> None:
    """Updates the test's lists, dicts, sets and bytearrays as the program changed them."""
    changes = [
        *zip(arguments, changed, strict=True),
        *((named[name], new) for name, new in changed_named.items()),
    ]
    for value, content in changes:
        if isinstance(value, list | bytearray):
            value[:] = content
        elif isinstance(value, dict | set):
            value.clear()
            value.update(content)
