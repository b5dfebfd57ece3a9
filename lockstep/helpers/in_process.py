"""Runs user code in a child process, or in this one for objects that exist only here."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lockstep.config.user_code import is_in_program
from lockstep.helpers.process import AnswerFunction, ChildError, HelperProcess


class InProcess(HelperProcess):
    """A `HelperProcess` for code that only this process can import; it runs here, without a
    timeout.

    Questions and replies pass through JSON as for a child, so that results are the same.
    """

    def __init__(self, module: str, *arguments: str) -> None:
        super().__init__(module, *arguments)
        self._answers: AnswerFunction | None = None

    def __reduce__(self) -> tuple[type[InProcess], tuple[str, ...]]:
        return InProcess, (self._module, *self._arguments)

    def start(self) -> None:
        if self._answers is None:
            try:
                self._answers = importlib.import_module(self._module).answers(*self._arguments)
            except Exception as error:
                raise ChildError(str(error)) from error

    @contextmanager
    def ask_streaming(self, question: Any) -> Iterator[Callable[[float], Any]]:
        self.start()
        assert self._answers is not None, "it has started"
        with self._lock:
            replies = self._answers(json.loads(json.dumps(question)))
            yield lambda timeout_s: json.loads(json.dumps(next(replies)))


def build_child(module: str, reference: str, *options: str) -> HelperProcess:
    """Builds the helper that runs user code: a child process, or this process for local objects.

    Args:
        module: Module with `answers`, see `HelperProcess`.
        reference: Location of the code, the first argument of `answers`.
        options: Remaining arguments of `answers`.
    """
    kind = InProcess if is_in_program(reference) else HelperProcess
    return kind(module, reference, *options)
