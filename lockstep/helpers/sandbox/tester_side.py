"""The side of a test: it runs in a process of its own and asks a program under test for plain values.

Runs inside of a jail of its own, with the standard library alone. Names that the program defines stand for things in
the program's process: calling one sends arguments as plain values and builds the result anew from plain data, so
nothing of the program's own making takes part in a comparison. No message from that process is trusted.
"""

from __future__ import annotations

import builtins
import os
import sys

from lockstep.helpers.sandbox.plain_values import NoPlainValue, decode, dumps, encode, loads

ENDED = "the program ended before the test"

_LONGEST, _MOST = 200, 10  # characters and signs of a verdict
TYPE_CHECKING = False  # importing `typing` takes long
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from lockstep.helpers.sandbox.uses import Uses


class Failed(BaseException):
    """The test cannot be passed any more, even if it catches this; the text says why."""


def run_test(file: int) -> NoReturn:
    """Runs the test in a file, over the pipes that are its standard input and output.

    The file is JSON of `test` and `uses`, and then of the verdict: `passed`; `why`, where it has not; and `tampering`,
    signs of attempts to cheat.
    """
    answers, questions = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nothing, descriptor)
    builtins.exit = builtins.quit = sys.exit
    sys.set_int_max_str_digits(0)  # the limit on CPU time is enough
    given = loads(os.pread(file, os.fstat(file).st_size, 0))
    side = _Side(os.fdopen(answers, "rb"), os.fdopen(questions, "wb"))
    why = side.run(given["test"], given["uses"])
    signs = [sign[:_LONGEST] for sign in dict.fromkeys(side.signs)][:_MOST]
    verdict = {"passed": why is None, "why": why and why[:_LONGEST], "tampering": signs}
    os.ftruncate(file, 0)
    os.pwrite(file, dumps(verdict), 0)
    os._exit(0)


class _Side:
    """A test, and its connection to the program.

    Attributes:
        signs: Signs of attempts to cheat.
    """

    def __init__(self, answers: Any, questions: Any) -> None:
        self._answers, self._questions = answers, questions
        self._things: dict[int, Thing] = {}
        self._functions: list[Any] = []
        self._failure: str | None = None
        self.signs: list[str] = []

    def run(self, test: str, uses: Uses) -> str | None:
        """Runs a test to its end; returns why it is not passed, None if it is."""
        try:
            names = _TestNames(self, uses, self._begin())
            sys.modules["solution"] = _Module(names)  # type: ignore[assignment]
            exec(compile(test, "test.py", "exec", dont_inherit=True), names)
        except BaseException as error:
            self._failure = self._failure or f"{type(error).__name__}: {error}"
        return self._failure

    def _begin(self) -> list[str]:
        """Returns the names that the program defines."""
        match self._read():
            case ["failed", str(kind)]:
                raise self.fail(f"the program ended with {kind}")
            case ["defined", list(names), list(replaced)]:
                self.signs += [f"replaced Python's {name}" for name in replaced]
                return names
            case _:
                raise self.tampering("said something else than what it defines")

    def ask(self, verb: str, *arguments: Any, **named: Any) -> Any:
        """Asks the program to do something with what it has; returns a plain value, or a `Thing`."""
        if self._failure is not None:
            raise Failed(self._failure)
        self._say([verb, encode((arguments, named), self._refer)])
        while True:
            match self._read():
                case ["callback", int(function), call] if 0 <= function < len(self._functions):
                    self._call(self._functions[function], *self._decode_call(call))
                case ["result", item, None]:
                    return self._decode(item)
                case ["result", item, changed]:
                    _replace_all(arguments, named, *self._decode_call(changed))
                    return self._decode(item)
                case ["ended"] if verb == "next":
                    raise StopIteration
                case ["raised", list(kinds), str(text)]:
                    raise _error(kinds, text)
                case ["unreadable", str(why)]:
                    raise self.fail(f"what the program has {why}")
                case ["left", str(how)]:
                    raise self.tampering(f"raised {how}")
                case _:
                    raise self.tampering("said something that was not asked")

    def fail(self, why: str) -> Failed:
        """Fails the test, even if it catches this; to be raised."""
        self._failure = self._failure or why
        return Failed(self._failure)

    def tampering(self, sign: str) -> Failed:
        """Notes an attempt, and fails the test."""
        self.signs.append(sign)
        return self.fail(f"the program {sign}")

    def _call(self, function: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Calls a function of the test's for the program."""
        try:
            said = ["returned", encode(function(*arguments, **named), self._refer)]
        except Exception as error:
            said = ["raised", type(error).__name__, str(error)]
        self._say(said)

    def _decode_call(self, item: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        match self._decode(item):
            case (tuple(arguments), dict(named)):
                return arguments, named
            case _:
                raise self.tampering("sent what is no call")

    def _decode(self, item: Any) -> Any:
        try:
            return decode(item, self._resolve)
        except NoPlainValue as error:
            raise self.tampering(f"sent what {error}") from None

    def _refer(self, value: Any) -> list[Any]:
        if isinstance(value, Thing):
            return ["thing", hash(value)]
        if not callable(value):
            raise self.fail(f"the test hands over a {type(value).__name__}, which is no plain value")
        self._functions.append(value)
        return ["callback", len(self._functions) - 1]

    def _resolve(self, item: list[Any]) -> Any:
        match item:
            case ["thing", int(number), str(kind), list(own)]:
                return self._things.setdefault(number, Thing(self, number, kind, own))
            case ["callback", int(number)] if 0 <= number < len(self._functions):
                return self._functions[number]
            case _:
                raise NoPlainValue("is of no known kind")

    def _say(self, content: Any) -> None:
        try:
            self._questions.write(dumps(content))
            self._questions.flush()
        except OSError:
            raise self.fail(ENDED) from None

    def _read(self) -> Any:
        line = self._answers.readline()
        if not line:
            raise self.fail(ENDED)
        try:
            return loads(line)
        except NoPlainValue as error:
            raise self.tampering(f"said something that {error}") from None


class Thing:
    """Something of the program's that is no plain value: a function, a class, an object, an iterator.

    It can be called, its attributes and items read and set, and it can be iterated over; each gives plain values or
    things. It is compared by the plain value that it is derived from, and where there is none the test has failed.
    """

    __side: _Side
    __number: int
    __kind: str
    __own: list[str]

    def __init__(self, side: _Side, number: int, kind: str, own: list[str]) -> None:
        vars(self).update(_Thing__side=side, _Thing__number=number, _Thing__kind=kind, _Thing__own=own)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # Python itself asks for these, and they decide what others mean
            raise AttributeError(name)
        return self.__side.ask("get", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self.__side.ask("set", self, name, value)

    def __hash__(self) -> int:
        """The number by which both sides refer to it."""
        return self.__number

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, Thing):
            return False
        if self.__own:
            self.__side.signs.append(f"returned a {self.__kind} with comparisons of its own, which a test does not use")
        return self.__side.ask("plain", self) == other


def _define(method: str, verb: str) -> None:
    """Defines a method of things that asks the program."""

    def ask(self: Thing, *arguments: Any, **named: Any) -> Any:
        return vars(self)["_Thing__side"].ask(verb, self, *arguments, **named)

    setattr(Thing, method, ask)


for _verb in ("call", "getitem", "setitem", "iter", "next", "len", "str", "repr", "bool"):
    _define(f"__{_verb}__", _verb)


class _TestNames(dict):
    """The names of a test: its own, then Python's, then the program's (see `uses`)."""

    def __init__(self, side: _Side, uses: Uses, defined: list[str]) -> None:
        super().__init__(__name__="solution", __builtins__=builtins)
        self._side, self._modules, self._defined = side, uses["modules"], frozenset(defined)
        if not uses["about_python"]:
            self._defined -= vars(builtins).keys()
            side.signs += [f"defines {name}, which the test uses" for name in uses["python"] if name in defined]

    def __missing__(self, name: str) -> Any:
        if name not in self._defined or name.startswith("_"):
            raise KeyError(name)
        if name in self._modules:
            module = __import__(name)
            if all(hasattr(module, attribute) for attribute in self._modules[name]):
                self[name] = module
                return module
        return self._side.ask("name", name)


class _Module:
    """The module `solution`, for a test that imports from it."""

    def __init__(self, names: _TestNames) -> None:
        self._names = names

    def __getattr__(self, name: str) -> Any:
        try:
            return self._names.__missing__(name)
        except KeyError:
            raise AttributeError(name) from None


def _error(kinds: list[Any], text: str) -> Exception:
    """An error of Python's own class that the program raised; RuntimeError for one that would only end a loop."""
    known = (vars(builtins).get(kind) for kind in kinds if type(kind) is str)
    found = next((kind for kind in known if isinstance(kind, type) and issubclass(kind, Exception)), RuntimeError)
    if issubclass(found, StopIteration | StopAsyncIteration):
        return RuntimeError(text)
    try:
        return found(text)
    except TypeError:  # its class takes more than a text
        return found.__new__(found)


def _replace_all(
    arguments: tuple[Any, ...], named: dict[str, Any], changed: tuple[Any, ...], changed_named: dict[str, Any]
) -> None:
    """Gives lists, dicts, sets and bytearrays of the test's new contents, as the program changed them."""
    changes = [*zip(arguments, changed, strict=True), *((named[name], new) for name, new in changed_named.items())]
    for value, content in changes:
        if isinstance(value, list | bytearray):
            value[:] = content
        elif isinstance(value, dict | set):
            value.clear()
            value.update(content)
