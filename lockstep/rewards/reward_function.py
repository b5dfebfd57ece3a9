"""The child-process side of a user's reward function: finds, inspects and calls it.

Has no heavy imports, so that the child holds only what the function needs.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any

from lockstep.config import user_code
from lockstep.core.errors import InputError
from lockstep.helpers.process import AnswerFunction

_TRACE = 20_000
"""Number of characters to keep from the end of a traceback."""

_CONCURRENCY = 16
"""Maximum number of concurrent calls of an `async def`."""

_PATH_ERRORS = (
    FileNotFoundError,
    FileExistsError,
    NotADirectoryError,
    IsADirectoryError,
    PermissionError,
)

RewardQuestion = Sequence[Sequence[Any]]
"""Prompt, response, answer, row and conversation (or None) of each response."""

_ONE = ("prompt", "response", "answer", "row")
_MANY = ("prompts", "responses", "answers", "rows")
_UNSUPPORTED = {"data_sources", "solution_strs", "queries", "completion_ids"}
"""Argument names that identify functions of other libraries that cannot be called as they are."""
_UNSUPPORTED_FIRST = {"completion", "response", "responses"}
"""First arguments of such functions, which have no prompt in that position."""
_SAMPLED = ("prompt", "completion")
"""Columns that TRL's functions do not get, since they get prompts and completions."""


def answers(function: str, option: str, batch: str = "") -> AnswerFunction:
    """Runs in the child: answers each [prompt, response, answer, row, conversation] with a reward
    or an error.

    Args:
        function: `file.py:name` or `package.module:name`.
        option: Key of its section in the recipe, for messages.
        batch: Not empty if the function takes all responses in one call.

    Raises:
        ValueError: If the function cannot be found or takes different arguments.
    """
    found = load_function(function, option, bool(batch))
    signature = _find_signature(found)
    names = () if signature is None else tuple(signature.parameters)
    loop = None
    if inspect.iscoroutinefunction(found):
        # shared by all calls, so that the module can keep a client
        loop = asyncio.new_event_loop()
        # the program's own thread may have an event loop
        threading.Thread(target=loop.run_forever, daemon=True).start()
    if "completions" in names:
        call = partial(_call_with_columns, found)
    elif "solution_str" in names:
        call = partial(_call_with_ground_truth, found)
    else:
        call = partial(_call_by_position, found)
    if batch or "completions" in names:
        return partial(_score_batch, call, loop)
    if loop is not None:
        return partial(_score_concurrently, call, loop)
    return partial(_score_each, call)


def load_function(function: str, option: str, batch: bool = False) -> Callable[..., Any]:
    """Finds `file.py:name` or `package.module:name`; raises as in `answers`."""
    named = f"{option}.function {function}"
    found = user_code.load_object(function, f"{option}.function", "function")
    signature = _find_signature(found)
    if signature is None:
        return found
    given = tuple(signature.parameters)
    if "completions" in given or ("solution_str" in given and not batch):
        return found
    names = _MANY if batch else _ONE
    if not _UNSUPPORTED.isdisjoint(given[:4]) or not _UNSUPPORTED_FIRST.isdisjoint(given[:1]):
        raise InputError(
            f"{named} takes {signature} , a signature of a different library, but is called with "
            f"({', '.join(names)}); wrap it: docs/guides/rewards.md"
        )
    try:
        signature.bind(*names)
    except TypeError:
        raise InputError(
            f"{named} takes {signature}, but is called with ({', '.join(names)}); change its "
            "signature"
        ) from None
    return found


def _find_signature(function: Callable[..., Any]) -> inspect.Signature | None:
    """The signature of a function; None for some C functions."""
    try:
        return inspect.signature(function)
    except ValueError:
        return None


def _call_by_position(function: Callable[..., Any], *question: Any) -> Any:
    """Calls a function with Lockstep's arguments, of one response or of all."""
    return function(*question[:4])


def _call_with_ground_truth(function: Callable[..., Any], *question: Any) -> Any:
    """Calls a function with verl's arguments; without a ground truth in the row, passes its
    answer.
    """
    _, response, answer, row, _ = question
    given = {name: row.get(name) for name in ("data_source", "extra_info")}
    given["solution_str"] = response
    given["ground_truth"] = (row.get("reward_model") or {}).get("ground_truth", answer)
    return _call_by_name(function, given)


def _call_with_columns(function: Callable[..., Any], *question: Any) -> Any:
    """Calls a function with TRL's arguments: prompts, completions, and the columns of the rows."""
    prompts, responses, _, rows, talks = question
    names = dict.fromkeys(chain.from_iterable(rows))
    given = {name: [row.get(name) for row in rows] for name in names if name not in _SAMPLED}
    given |= {"prompts": prompts, "completions": responses}
    if talks[0] is not None:
        given["prompts"] = talks
        given["completions"] = [[{"role": "assistant", "content": text}] for text in responses]
    return _call_by_name(function, given)


def _call_by_name(function: Callable[..., Any], given: dict[str, Any]) -> Any:
    """Calls a function with the given arguments that it accepts."""
    signature = inspect.signature(function)
    if not any(one.kind is one.VAR_KEYWORD for one in signature.parameters.values()):
        given = {name: given[name] for name in given if name in signature.parameters}
    try:
        signature.bind(**given)
    except TypeError as error:
        raise _InvalidRewards(
            f"takes {signature}, but its rows lack a column ({error}); add it to the rows"
        ) from None
    return function(**given)


def _score_each(function: Callable[..., Any], question: RewardQuestion) -> Iterator[dict[str, Any]]:
    """Calls a function for each response."""
    for given in question:
        try:
            yield _read_reward(function(*given))
        except Exception as error:  # any error of the user's code
            yield _describe_error(error)


def _score_batch(
    function: Callable[..., Any], loop: asyncio.AbstractEventLoop | None, question: RewardQuestion
) -> Iterator[dict[str, Any]]:
    """Calls a function once for all responses; an error is the reply for each response."""
    try:
        returned = function(*map(list, zip(*question, strict=True)))
        if loop is not None:
            returned = asyncio.run_coroutine_threadsafe(returned, loop).result()
        rewards = _read_list(returned, len(question))
    except Exception as error:  # any error of the user's code
        yield from [{**_describe_error(error), "of_all": True}] * len(question)
    else:
        yield from map(_read_reward, rewards)


def _score_concurrently(
    function: Callable[..., Any], loop: asyncio.AbstractEventLoop, question: RewardQuestion
) -> Iterator[dict[str, Any]]:
    """Calls an `async def` for each response concurrently; yields in order."""
    gate = asyncio.Semaphore(_CONCURRENCY)

    async def score_one(given: Sequence[Any]) -> dict[str, Any]:
        async with gate:
            try:
                return _read_reward(await function(*given))
            except BaseException as error:  # also exceptions that would end the loop
                return _describe_error(error)

    for future in [asyncio.run_coroutine_threadsafe(score_one(given), loop) for given in question]:
        yield future.result()


class _InvalidRewards(Exception):
    """A batch function did not return a list of rewards; the text describes its result."""


def _read_list(returned: Any, count: int) -> list[Any]:
    try:
        rewards = list(returned)
    except Exception:
        raise _InvalidRewards(
            f"returned {user_code.describe_object(returned)}; return a list of rewards"
        ) from None
    if len(rewards) != count:
        raise _InvalidRewards(
            f"returned {len(rewards)} rewards for {count} responses; return one per response"
        )
    return rewards


def _read_reward(reward: object) -> dict[str, Any]:
    if isinstance(reward, dict) and "score" in reward:  # as functions of verl return it
        reward = reward["score"]
    try:
        return {"reward": user_code.read_reward(reward)}
    except ValueError as error:
        return _build_refusal(f"returned {error}")


def _build_refusal(wrong: str) -> dict[str, Any]:
    return {"wrong": wrong, "trace": "", "may_pass": False, "of_all": False}


def _describe_error(error: BaseException) -> dict[str, Any]:
    match error:
        case _InvalidRewards():
            return _build_refusal(str(error))
        case Exception():
            trace = "".join(traceback.format_exception(error))[-_TRACE:]
            wrong = user_code.describe_error(error)
            return {
                "wrong": wrong,
                "trace": trace,
                "may_pass": _is_temporary(error),
                "of_all": False,
            }
        case _:
            return _build_refusal(f"raised {type(error).__name__}")


def _is_temporary(error: BaseException | None) -> bool:
    """True if a connection or disk error may succeed on retry; false for wrong file names."""
    seen = set[int]()  # `raise error from error` is its own cause
    while error is not None and id(error) not in seen:
        if isinstance(error, OSError) and not isinstance(error, _PATH_ERRORS):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False
