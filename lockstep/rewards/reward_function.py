"""A user's reward function, as its child process sees it: found, inspected, and called (see `child`).

Imports nothing heavy, so that the child holds what the function needs and no more.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterator
from typing import Any, cast

from lockstep.config import user_code
from lockstep.errors import InputError
from lockstep.helpers.process import Answers

_TRACE = 20_000
"""Characters of a trace that are kept: its end."""

Function = Callable[[str, str, str, dict[str, Any]], float | None]

_OF_NAMES = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError)


def answers(function: str) -> Answers:
    """Runs in the child: reads a list of [prompt, response, answer, row], and replies a reward or an error for each.

    Raises:
        ValueError: If there is no such function, or it does not take four arguments.
    """
    judge = load(function)

    def score_all(question: list[list[Any]]) -> Iterator[dict[str, Any]]:
        return (_score(judge, given) for given in question)

    return score_all


def load(function: str) -> Function:
    """Finds `file.py:name` or `package.module:name`; raises as `answers`."""
    found = user_code.load(function, "reward.function", "function")
    if inspect.iscoroutinefunction(found) or inspect.isgeneratorfunction(found):
        raise InputError(f"reward.function {function} is async or a generator; let it return the reward itself")
    _takes_four(found, function)
    return cast(Function, found)


def _takes_four(found: Callable[..., Any], function: str) -> None:
    try:
        signature = inspect.signature(found)
    except ValueError:  # some functions in C have no signature
        return
    try:
        signature.bind("prompt", "response", "answer", {})
    except TypeError:
        raise InputError(
            f"reward.function {function} takes {signature}, but is called with (prompt, response, answer, row); "
            "let it take these four"
        ) from None


def _score(judge: Function, given: list[Any]) -> dict[str, Any]:
    try:
        reward = judge(*given)
    except Exception as error:  # any error of the user's code
        trace = traceback.format_exc()[-_TRACE:]
        return {"wrong": user_code.describe_error(error), "trace": trace, "may_pass": _may_pass(error)}
    try:
        return {"reward": user_code.read_reward(reward)}
    except ValueError as error:
        return {"wrong": f"returned {error}", "trace": "", "may_pass": False}


def _may_pass(error: BaseException | None) -> bool:
    """True if a connection or a disk is behind an error, which may do better later; a file's name does not."""
    seen = set[int]()  # `raise error from error` is its own cause
    while error is not None and id(error) not in seen:
        if isinstance(error, OSError) and not isinstance(error, _OF_NAMES):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False
