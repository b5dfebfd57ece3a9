"""The side of a program under test, which answers its test's questions (`tester_side`).

Runs inside its own sandbox with only the standard library. The program can do anything to this side
and still can only answer: the test, its expected values and the verdict are in a different process.
"""

from __future__ import annotations

import builtins
import operator
import os
import sys
from typing import Any, NoReturn

from lockstep.helpers.sandbox.plain_values import (
    convert_to_base,
    decode_value,
    encode_value,
    format_line,
    parse_line,
)


def read_source(file: int) -> bytes:
    """Reads a file to its end and closes it."""
    source = os.pread(file, os.fstat(file).st_size, 0)
    os.close(file)
    return source


def take_pipes() -> tuple[Any, Any]:
    """Hides the pipes of this process's input and output from the program."""
    builtins.exit = builtins.quit = sys.exit
    sys.set_int_max_str_digits(0)  # the CPU time limit is sufficient
    received = os.fdopen(os.dup(0), "rb")
    sent = os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nothing, descriptor)
    return received, sent


def run_program(file: int) -> None:
    """Runs the program in a file as Python would."""
    builtins.exit = builtins.quit = sys.exit
    module = sys.modules["__main__"] = type(sys)("__main__")
    sys.argv = ["main.py"]
    exec(compile(read_source(file), "main.py", "exec", dont_inherit=True), vars(module))


def serve(file: int) -> NoReturn:
    """Answers questions about the program in a file over standard input and output."""
    program = _ProgramSide(*take_pipes(), file)
    while line := program.questions.readline():
        program.answer_question(*parse_line(line))
    os._exit(0)


class _ProgramSide:
    """The program's definitions, and the objects and functions that references stand for."""

    def __init__(self, questions: Any, answers: Any, file: int) -> None:
        self.questions = questions
        self._answers = answers
        self._file = file
        self._module = type(sys)("solution")
        self._objects: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._functions: dict[int, int] = {}
        self._verbs = {
            "import": self._import_program,
            "name": vars(self._module).__getitem__,
            "get": getattr,
            "set": setattr,
            "call": operator.call,
            "getitem": operator.getitem,
            "setitem": operator.setitem,
            "iter": iter,
            "next": next,
            "len": len,
            "str": str,
            "repr": repr,
            "bool": bool,
            "plain": convert_to_base,
        }

    def answer_question(self, verb: str, given: Any) -> None:
        """Answers a question."""
        arguments, named = decode_value(given, self._resolve_reference)
        try:
            value = self._verbs[verb](*arguments, **named)
            changed = self._encode_value((arguments, named))
            answer = ["result", self._encode_value(value), None if changed == given else changed]
        except BaseException as error:
            answer = [
                "raised",
                [kind.__name__ for kind in type(error).__mro__],
                _format_error(error),
            ]
        self._send_message(answer)

    def _import_program(self) -> list[str]:
        """Imports the program as the module `solution`; returns the names that it defines."""
        sys.modules["solution"] = self._module
        exec(
            compile(read_source(self._file), "main.py", "exec", dont_inherit=True),
            vars(self._module),
        )
        return list(vars(self._module))

    def _encode_value(self, value: Any) -> Any:
        return encode_value(value, self._make_reference)

    def _make_reference(self, value: Any) -> list[Any]:
        if id(value) in self._functions:
            return ["callback", self._functions[id(value)]]
        number = self._numbers.setdefault(id(value), len(self._objects))
        if number == len(self._objects):
            self._objects.append(value)
        return ["thing", number]

    def _resolve_reference(self, item: list[Any]) -> Any:
        kind, number = item
        if kind == "thing":
            return self._objects[number]

        def call_test_function(*arguments: Any, **named: Any) -> Any:
            # the test's function may ask questions before it returns
            self._send_message(["callback", number, self._encode_value((arguments, named))])
            while line := self.questions.readline():
                verb, *given = parse_line(line)
                if verb == "returned":
                    return decode_value(given[0], self._resolve_reference)
                if verb == "raised":
                    kind, text = given
                    raise vars(builtins).get(kind, RuntimeError)(text)
                self.answer_question(verb, *given)
            os._exit(0)

        self._functions[id(call_test_function)] = number
        self._objects.append(call_test_function)  # so that no other object reuses its id
        return call_test_function

    def _send_message(self, content: Any) -> None:
        self._answers.write(format_line(content))
        self._answers.flush()


def _format_error(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return ""
