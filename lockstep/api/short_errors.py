"""Errors for users, raised from public functions without Lockstep's own frames."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from lockstep.core.errors import LockstepError

P = ParamSpec("P")
R = TypeVar("R")


def shorten_traceback(function: Callable[P, R]) -> Callable[P, R]:
    """Decorates a public function: errors meant for users keep their message but not their frames.

    The message and its notes explain what is wrong and where. Any other exception is a crash
    and keeps its traceback.
    """

    @wraps(function)
    def call_function(*args: P.args, **options: P.kwargs) -> R:
        try:
            return function(*args, **options)
        except LockstepError as error:
            raise error.with_traceback(None) from None

    return call_function
