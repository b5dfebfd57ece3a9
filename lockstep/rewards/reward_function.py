"""A user's reward function, as its child process sees it: found, inspected, and called (see `child`).

Imports nothing heavy, so that the child holds what the function needs and no more.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.config import user_code
from lockstep.errors import InputError
from lockstep.helpers.process import Answers

_TRACE = 20_000
"""Characters of a trace that are kept: its end."""

_CONCURRENCY = 16
"""Calls of an `async def` that are under way at once, unless the recipe says how many."""

_OF_NAMES = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError)

Question = Sequence[Sequence[Any]]
"""A prompt, a response, an answer and a row, for each response."""


def answers(function: str, option: str, batch: str = "", concurrency: str = "") -> Answers:
    """Runs in the child: reads a list of [prompt, response, answer, row], and replies a reward or an error for each.

    Args:
        function: Its place.
        option: Key of its section in the recipe, for messages.
        batch: Not empty where it takes all of them at once.
        concurrency: Calls that may be under way at once, where the recipe says how many.

    Raises:
        ValueError: If there is no such function, or it does not take four arguments.
    """
    found = load(function, option, bool(batch))
    if not inspect.iscoroutinefunction(found):
        if concurrency:
            raise InputError(
                f"{option}.function {function} is no `async def`, so its calls wait for one another; leave "
                f"{option}.concurrency out, or make it one"
            )
        return (lambda question: _score_batch(found, question)) if batch else (lambda question: _score(found, question))
    awaiting = _Awaiting(found, int(concurrency or _CONCURRENCY))
    return (lambda question: _score_batch(awaiting.call, question)) if batch else awaiting.score


def load(function: str, option: str, batch: bool = False) -> Callable[..., Any]:
    """Finds `file.py:name` or `package.module:name`; raises as `answers`."""
    named = f"{option}.function"
    found = user_code.load(function, named, "function")
    if inspect.isgeneratorfunction(found) or inspect.isasyncgenfunction(found):
        raise InputError(f"{named} {function} is a generator; let it return the reward itself")
    _takes_four(found, f"{named} {function}", ("prompts", "responses", "answers", "rows") if batch else _ONE)
    return found


_ONE = ("prompt", "response", "answer", "row")


def _takes_four(found: Callable[..., Any], named: str, names: tuple[str, ...]) -> None:
    try:
        signature = inspect.signature(found)
    except ValueError:  # some functions in C have no signature
        return
    try:
        signature.bind(*names)
    except TypeError:
        raise InputError(
            f"{named} takes {signature}, but is called with ({', '.join(names)}); let it take these four"
        ) from None


def _score(function: Callable[..., Any], question: Question) -> Iterator[dict[str, Any]]:
    """Calls a function for each response."""
    for given in question:
        try:
            yield _read(function(*given))
        except Exception as error:  # any error of the user's code
            yield _fault(error)


def _score_batch(function: Callable[..., Any], question: Question) -> Iterator[dict[str, Any]]:
    """Calls a function once for all responses."""
    try:
        rewards = _read_list(function(*map(list, zip(*question, strict=True))), len(question))
    except _Refused as refused:
        yield {**_refuse(str(refused)), "of_all": True}
    except Exception as error:  # any error of the user's code
        yield {**_fault(error), "of_all": True}
    else:
        yield from map(_read, rewards)


class _Refused(Exception):
    """A batch function returned no list of rewards; the text says what it returned."""


def _read_list(returned: Any, count: int) -> list[Any]:
    try:
        rewards = list(returned)
    except Exception:
        raise _Refused(f"returned {user_code.show(returned)}; return a list of rewards") from None
    if len(rewards) != count:
        raise _Refused(f"returned {len(rewards)} rewards for {count} responses; return one for each")
    return rewards


@dataclass
class _Awaiting:
    """An `async def` and the event loop of its calls, which lasts as long as the process.

    Attributes:
        function: The function.
        concurrency: Calls that may be under way at once.
    """

    function: Callable[..., Any]
    concurrency: int

    def __post_init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def call(self, *given: Any) -> Any:
        """Calls the function once, and waits for it."""
        return asyncio.run_coroutine_threadsafe(self.function(*given), self._loop).result()

    def score(self, question: Question) -> Iterator[dict[str, Any]]:
        """Calls the function for each response, several at a time; yields in their order."""
        gate = asyncio.Semaphore(self.concurrency)

        async def score_one(given: Sequence[Any]) -> dict[str, Any]:
            async with gate:
                try:
                    return _read(await self.function(*given))
                except Exception as error:  # any error of the user's code
                    return _fault(error)
                except BaseException as error:  # what would end the loop, or leave this call without a result
                    return _refuse(f"raised {type(error).__name__}")

        futures = [asyncio.run_coroutine_threadsafe(score_one(given), self._loop) for given in question]
        try:
            for future in futures:
                yield future.result()
        finally:
            for future in futures:
                future.cancel()


def _read(reward: object) -> dict[str, Any]:
    try:
        return {"reward": user_code.read_reward(reward)}
    except ValueError as error:
        return _refuse(f"returned {error}")


def _refuse(wrong: str) -> dict[str, Any]:
    return {"wrong": wrong, "trace": "", "may_pass": False, "of_all": False}


def _fault(error: Exception) -> dict[str, Any]:
    trace = "".join(traceback.format_exception(error))[-_TRACE:]
    wrong = user_code.describe_error(error)
    return {"wrong": wrong, "trace": trace, "may_pass": _may_pass(error), "of_all": False}


def _may_pass(error: BaseException | None) -> bool:
    """True if a connection or a disk is behind an error, which may do better later; a file's name does not."""
    seen = set[int]()  # `raise error from error` is its own cause
    while error is not None and id(error) not in seen:
        if isinstance(error, OSError) and not isinstance(error, _OF_NAMES):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False
