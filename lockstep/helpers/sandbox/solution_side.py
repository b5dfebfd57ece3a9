"""The side of a program under test: it defines things, and answers what its test asks of them (see `tester_side`).

Runs inside of a jail of its own, with the standard library alone. The program may do anything to this side, and still
can only answer: the test, the values that it compares with and the verdict are in another process.
"""

from __future__ import annotations

import builtins
import os
import sys
from _operator import call, getitem, setitem  # `operator` takes longer

from lockstep.helpers.sandbox.plain_values import NoPlainValue, base_of, decode, dumps, encode, loads

TYPE_CHECKING = False  # importing `typing` takes long
if TYPE_CHECKING:
    from typing import Any, NoReturn

_COMPARISONS = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__contains__", "__class__")


def run_program(file: int) -> None:
    """Runs the program in a file as Python would."""
    builtins.exit = builtins.quit = sys.exit
    module = sys.modules["__main__"] = type(sys)("__main__")
    sys.argv = ["main.py"]
    exec(_compile(file), vars(module))


def serve(file: int) -> NoReturn:
    """Imports the program in a file as the module `solution`, and answers over its input and its output, two pipes."""
    builtins.exit = builtins.quit = sys.exit
    sys.set_int_max_str_digits(0)  # the limit on CPU time is enough
    questions, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nothing, descriptor)
    _Program(questions, answers).serve(file)
    os._exit(3)  # the test has left; 0 is the status of a program that ended itself


def _compile(file: int) -> Any:
    """Compiles a program, and closes its file."""
    source = os.pread(file, os.fstat(file).st_size, 0)
    os.close(file)
    return compile(source, "main.py", "exec", dont_inherit=True)


class _Program:
    """The program's side: what it has defined, and the objects and functions that references mean."""

    def __init__(self, questions: Any, answers: Any) -> None:
        self._questions, self._answers = questions, answers
        self._module = type(sys)("solution")
        self._objects: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._functions: dict[int, int] = {}
        self._verbs = {
            "name": vars(self._module).__getitem__,
            "get": getattr,
            "set": setattr,
            "call": call,
            "getitem": getitem,
            "setitem": setitem,
            "iter": iter,
            "next": next,
            "len": len,
            "str": str,
            "repr": repr,
            "bool": bool,
            "plain": base_of,
        }

    def serve(self, file: int) -> None:
        self._say(self._import(file))
        while line := self._questions.readline():
            self._answer(*loads(line))

    def _import(self, file: int) -> list[Any]:
        sys.modules["solution"] = self._module
        before = dict(vars(builtins))
        try:
            exec(_compile(file), vars(self._module))
        except BaseException as error:
            return ["failed", type(error).__name__]
        replaced = [name for name, value in before.items() if vars(builtins).get(name) is not value]
        return ["defined", [name for name in vars(self._module) if type(name) is str], replaced]

    def _answer(self, verb: str, given: Any) -> None:
        arguments, named = decode(given, self._resolve)
        try:
            value = self._verbs[verb](*arguments, **named)
            changed = self._encode((arguments, named))
            answer = ["result", self._encode(value), None if changed == given else changed]
        except NoPlainValue as error:
            answer = ["unreadable", str(error)]
        except StopIteration:
            answer = ["ended"] if verb == "next" else ["raised", ["RuntimeError"], "StopIteration"]
        except Exception as error:
            answer = ["raised", [kind.__name__ for kind in type(error).__mro__], _text(error)]
        except BaseException as error:
            answer = ["left", type(error).__name__]
        self._say(answer)

    def _encode(self, value: Any) -> Any:
        return encode(value, self._refer)

    def _refer(self, value: Any) -> list[Any]:
        if id(value) in self._functions:
            return ["callback", self._functions[id(value)]]
        number = self._numbers.setdefault(id(value), len(self._objects))
        if number == len(self._objects):
            self._objects.append(value)
        kind = type(value)
        own = [name for name in _COMPARISONS if kind.__module__ == "solution" and name in vars(kind)]
        return ["thing", number, kind.__name__, own]

    def _resolve(self, item: list[Any]) -> Any:
        if item[0] == "thing":
            return self._objects[item[1]]
        number = item[1]

        def function(*arguments: Any, **named: Any) -> Any:
            return self._call_back(number, arguments, named)

        self._functions[id(function)] = number
        self._objects.append(function)  # so that no other object gets its id
        return function

    def _call_back(self, number: int, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Calls a function of the test's, which may ask something in between."""
        self._say(["callback", number, self._encode((arguments, named))])
        while line := self._questions.readline():
            verb, *given = loads(line)
            if verb == "returned":
                return decode(given[0], self._resolve)
            if verb == "raised":
                kind, text = given
                raise vars(builtins).get(kind, RuntimeError)(text)
            self._answer(verb, *given)
        os._exit(3)

    def _say(self, content: Any) -> None:
        self._answers.write(dumps(content))
        self._answers.flush()


def _text(error: Exception) -> str:
    try:
        return str(error)
    except Exception:
        return ""
