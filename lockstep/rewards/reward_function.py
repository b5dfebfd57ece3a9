"""The child process's side of a user's reward function: it finds, inspects and calls the function.

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
from lockstep.core.errors import InputError
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
        function: `file.py:name` or `package.module:name`.
        option: Key of its section in the recipe, for messages.
        batch: Not empty if the function takes all responses at once.
        concurrency: Calls that may be under way at once, where the recipe says how many.

    Raises:
        ValueError: If there is no such function, or it takes other arguments.
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
    named = f"{option}.function {function}"
    found = user_code.load(function, f"{option}.function", "function")
    if inspect.isgeneratorfunction(found) or inspect.isasyncgenfunction(found):
        raise InputError(f"{named} is a generator; let it return the reward itself")
    ours, verl = (_MANY, _VERL_MANY) if batch else (_ONE, _VERL_ONE)
    try:
        signature = inspect.signature(found)
    except ValueError:  # some functions in C have no signature
        return found
    given = tuple(signature.parameters)
    if given[:3] == verl[:3]:
        _require_arguments(signature, named, verl, by_name=True)
        return _adapt_verl(found, batch)
    is_foreign = not _OF_OTHERS.isdisjoint(given[:4]) or not _NO_PROMPTS.isdisjoint(given[:1])
    if is_foreign or (given[1:2] == ("completions",) and not batch):
        raise InputError(
            f"{named} takes {signature} as functions of another library do, but is called with ({', '.join(ours)}); "
            "wrap it: docs/guides/rewards.md"
        )
    _require_arguments(signature, named, ours)
    return found


_ONE, _MANY = ("prompt", "response", "answer", "row"), ("prompts", "responses", "answers", "rows")
_VERL_ONE = ("data_source", "solution_str", "ground_truth", "extra_info")
_VERL_MANY = ("data_sources", "solution_strs", "ground_truths", "extra_infos")
_OF_OTHERS = {"data_source", "data_sources", "completion_ids"}
"""Arguments by which reward functions of verl and TRL are recognized: ours have no such names."""
_NO_PROMPTS = {"completion", "completions", "queries", "solution_str", "solution_strs", "response", "responses"}
"""First arguments of such functions, where ours take the prompt."""


def _adapt_verl(found: Callable[..., Any], batch: bool) -> Callable[..., Any]:
    """Wraps a reward function written for verl, which is called by verl's argument names."""

    def verl_names(*given: Any) -> dict[str, Any]:
        if not batch:
            return dict(zip(_VERL_ONE, _verl_arguments(*given), strict=True))
        columns = zip(*(_verl_arguments(*one) for one in zip(*given, strict=True)), strict=True)
        return dict(zip(_VERL_MANY, map(list, columns), strict=True))

    def read(scores: Any) -> Any:
        return [_read_score(score) for score in scores] if batch else _read_score(scores)

    def call(*given: Any) -> Any:
        return read(found(**verl_names(*given)))

    async def call_later(*given: Any) -> Any:
        return read(await found(**verl_names(*given)))

    return call_later if inspect.iscoroutinefunction(found) else call


def _verl_arguments(prompt: str, response: str, answer: str, row: dict[str, Any]) -> tuple[Any, ...]:
    """The arguments that verl passes; the ground truth is the row's own, or else what data.answer renders."""
    inner, extra = row.get("reward_model"), row.get("extra_info")
    truth = inner.get("ground_truth") if isinstance(inner, dict) else None
    if "data_source" not in row or (truth is None and not answer):
        missing = "reward_model.ground_truth, and data.answer is empty" if "data_source" in row else "data_source"
        raise _Refused(
            f"is a function of verl's, of ({', '.join(_VERL_ONE)}), and its row has no field {missing}; wrap it: "
            "docs/guides/rewards.md"
        )
    return row["data_source"], response, answer if truth is None else truth, {} if extra is None else dict(extra)


def _read_score(score: Any) -> Any:
    """The reward in what a function of verl's returns: a number, or an object with it."""
    return score["score"] if isinstance(score, dict) and "score" in score else score


def _require_arguments(signature: inspect.Signature, named: str, names: tuple[str, ...], by_name: bool = False) -> None:
    try:
        signature.bind(*(() if by_name else names), **(dict.fromkeys(names) if by_name else {}))
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
    except Exception as error:  # any error of the user's code
        yield {**_fault(error), "of_all": True}
    else:
        yield from map(_read, rewards)


class _Refused(Exception):
    """A function cannot be called with a row, or a batch function returned no list; the text says which."""


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
                except BaseException as error:  # also what would end the loop, or leave this call without a result
                    return _fault(error)

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


def _fault(error: BaseException) -> dict[str, Any]:
    match error:
        case _Refused():
            return _refuse(str(error))
        case Exception():
            trace = "".join(traceback.format_exception(error))[-_TRACE:]
            wrong = user_code.describe_error(error)
            return {"wrong": wrong, "trace": trace, "may_pass": _may_pass(error), "of_all": False}
        case _:
            return _refuse(f"raised {type(error).__name__}")


def _may_pass(error: BaseException | None) -> bool:
    """True if an error comes from a connection or a disk, so that a retry may help; not for wrong file names."""
    seen = set[int]()  # `raise error from error` is its own cause
    while error is not None and id(error) not in seen:
        if isinstance(error, OSError) and not isinstance(error, _OF_NAMES):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False
