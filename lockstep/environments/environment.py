"""Environments: user-defined classes for multi-turn episodes, and the process that runs them.

Has no heavy imports, so that the child process is small and starts fast.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from functools import partial
from typing import Any, Protocol

from lockstep.config import user_code
from lockstep.core.errors import InputError
from lockstep.environments.options import ToolFormat
from lockstep.environments.tools import (
    MARKS,
    MalformedCall,
    ToolCall,
    ToolSet,
    ToolTurn,
    build_tool_messages,
    name_functions,
    parse_calls,
    replace_surrogates,
)
from lockstep.helpers.process import AnswerFunction


class Environment(Protocol):
    """One episode of an environment.

    Each episode has its own instance, created without arguments.

    Answers must be a function of the row, the seed and the responses: if another episode crashes
    the process, this one is replayed with the same responses and must give the same answers.

    If `step` is an `async def`, one event loop awaits all episodes of a turn concurrently, and also
    the result of `reset` if it is awaitable. The loop runs only during turns.

    With a method `tools()` the policy can call tools, and `step` gets responses without a call.
    `tools()` returns methods or functions with type hints and a docstring with a section `Args:`,
    or pairs of a JSON schema and a function. An `async def` tool is awaited concurrently with the
    turn's other calls.

    A class can have the attributes `cut_off_reward`, the reward of an episode that a recipe limit
    ends (a number; "as_is": the sum so far; None: no verdict), and `best_reward`, the mean reward
    of the best policy.
    """

    def reset(self, row: dict[str, Any], seed: int) -> None:
        """Starts the episode.

        Args:
            row: The prompt's data row.
            seed: Seed of the environment's random numbers.
        """
        ...

    def step(self, response: str) -> tuple[str, float | Mapping[str, float | None] | None, bool]:
        """Answers a response of the policy.

        Args:
            response: Text of the response, without a special token at its end.

        Returns:
            The policy's next observation; a reward, which is added to the rewards of earlier turns,
            or named rewards that are summed (None: no verdict on the episode); and True if the
            episode has ended.
        """
        ...


_METHODS = {"reset": ("row", "seed"), "step": ("response",)}

_NO_CALLS = {"calls": 0, "malformed": 0}

CALLED = "called"
"""A reply that only restarts the timeout: a call has returned or the event loop is alive."""

DECLARED = "declared"
"""The question that asks for the class's declarations.

The reply has the JSON schemas of the tools as `schemas`, and the attributes `cut_off_reward` and
`best_reward` if declared.
"""

AS_IS = "as_is"
"""The `cut_off_reward` of a class whose truncated episodes keep the sum so far."""

TOGETHER = "together"
"""The first reply if episodes run concurrently, so that any of them may crash the process."""


def answers(class_name: str, tool_format: str = "") -> AnswerFunction:
    """Runs in the child process: replies to each move with a step's result or an error.

    Args:
        class_name: The class, see `user_code.load_object`.
        tool_format: Format in which the policy writes tool calls; empty: no tools.

    Raises:
        ValueError: The class cannot be found or created, lacks a method, or has invalid tools.
    """
    form: ToolFormat | None = next((known for known in MARKS if known == tool_format), None)
    return _CurrentEpisodes(
        user_code.load_object(class_name, "environment.class_name", "class"), class_name, form
    )


class _InvalidAnswer(Exception):
    """An environment returned an invalid value; the text describes it."""


class _CurrentEpisodes:
    """The active episodes by number.

    An episode that is missing from the next question has ended and is dropped.
    """

    def __init__(self, make: Callable[[], Any], name: str, tool_format: ToolFormat | None) -> None:
        try:
            first = make()
        except Exception as error:  # any error of the user's code
            raise InputError(
                f"environment.class_name {name} cannot be constructed without arguments: it "
                f"{_describe_error(error)}"
            ) from None
        lacks = [method for method in _METHODS if not callable(getattr(first, method, None))]
        if lacks:
            raise InputError(
                f"environment.class_name {name} lacks the method {' and the method '.join(lacks)}"
            )
        for method, takes in _METHODS.items():
            try:
                inspect.signature(getattr(first, method)).bind(*takes)
            except TypeError as error:
                raise InputError(
                    f"environment.class_name {name}: {method} must take ({', '.join(takes)}): "
                    f"{error}"
                ) from None
        tools = _open_tools(first, name, tool_format)
        self._declared = _read_attributes(first, name)
        waits = inspect.iscoroutinefunction(first.step) or (tools is not None and tools.waits)
        if tools is None or tool_format is None:
            self._schemas: list[Any] = []
            self._make: Callable[[str], Any] = lambda opened: make()
        else:
            parse = partial(parse_calls, tool_format=tool_format)
            self._schemas = tools.schemas
            self._make = lambda opened: _WithTools(make(), tools, partial(parse, opened=opened))
        self._live: dict[int, Any] = {}
        self._loop = asyncio.new_event_loop() if waits else None

    def __call__(self, question: list[dict[str, Any]] | str, /) -> Iterator[Any]:
        if isinstance(question, str):
            yield {"schemas": self._schemas, **self._declared}
            return
        before = self._live
        self._live = {}
        moves = [self._answer_move(move, before) for move in question]
        if self._loop is not None:
            yield TOGETHER
            yield from _await_all(moves, question[0]["timeout_s"] / 2, self._loop)
            return
        for replies in moves:
            reply = CALLED
            while reply == CALLED:
                reply = _run_without_waiting(_catch_error(anext(replies)))
                yield reply

    async def _answer_move(
        self, move: dict[str, Any], live: Mapping[int, Any]
    ) -> AsyncIterator[Any]:
        """Yields the answer to the latest response; first replays an episode new to this
        process.
        """
        limit_s = move["timeout_s"]
        environment: Any = None
        if len(move["responses"]) > 1:  # else it is a new episode, which may reuse a number
            environment = live.get(move["episode"])
        if environment is None:
            environment = self._make(move.get("opened", ""))
            await _await_call(environment.reset(move["row"], move["seed"]), limit_s)
            yield CALLED
            # all but the latest
            for response, observation in zip(move["responses"], move["observations"], strict=False):
                result = await _await_call(environment.step(response), limit_s)
                if _parse_step_result(result)["observation"] != observation:
                    raise _InvalidAnswer(
                        "returned a different observation on replay; it must depend only on the "
                        "row, the seed and the responses"
                    )
                yield CALLED
        result = await _await_call(environment.step(move["responses"][-1]), limit_s)
        answer = _parse_step_result(result)
        if not answer["done"]:
            self._live[move["episode"]] = environment
        yield answer


def _await_all(
    moves: Sequence[AsyncIterator[Any]], every_s: float, loop: asyncio.AbstractEventLoop
) -> Iterator[Any]:
    """Yields the answers to moves in order, awaiting all of them concurrently."""
    tasks = [loop.create_task(_catch_error(_await_last(replies))) for replies in moves]
    for task in tasks:
        while not task.done():
            loop.run_until_complete(asyncio.wait({task}, timeout=every_s))
            if not task.done():
                yield CALLED
        yield {"wrong": "was canceled by its own code"} if task.cancelled() else task.result()


async def _await_last(replies: AsyncIterator[Any]) -> Any:
    return [reply async for reply in replies][-1]


def _run_without_waiting(reply: Coroutine[Any, Any, Any]) -> Any:
    """Runs a coroutine that never waits, since user code may run its own event loop in it."""
    try:
        reply.send(None)
    except StopIteration as end:
        return end.value
    return {"wrong": "returned an awaitable, but its step is not `async def`; make it one"}


async def _catch_error(reply: Awaitable[Any]) -> Any:
    """Awaits a reply; returns an error of the user's code as a reply."""
    try:
        return await reply
    except Exception as error:
        return {"wrong": _describe_error(error)}


def _read_attributes(first: Any, name: str) -> dict[str, Any]:
    """The reward attributes that an environment class declares.

    Raises:
        InputError: One of them has an invalid value.
    """
    declared: dict[str, Any] = {}
    for attribute, words in (("cut_off_reward", (AS_IS,)), ("best_reward", ())):
        try:
            if not hasattr(first, attribute):
                continue
            value = getattr(first, attribute)
            declared[attribute] = value if value in words else user_code.read_reward(value)
        except Exception:  # any error of the user's code
            allowed = ", ".join(["a number", *map(repr, words)])
            raise InputError(
                f"environment.class_name {name} has an invalid {attribute}; set it to {allowed} "
                "or None"
            ) from None
    return declared


def _open_tools(first: Any, name: str, tool_format: ToolFormat | None) -> ToolSet | None:
    """The tools of an environment; None if it declares none."""
    declares = callable(getattr(first, "tools", None))
    if declares != (tool_format is not None):
        raise InputError(
            f"environment.class_name {name} declares tools; set how the model writes tool calls, "
            "such as environment.tool_format=hermes"
            if declares
            else (
                f"environment.tool_format is {tool_format}, but environment.class_name {name} "
                "has no method tools"
            )
        )
    if tool_format is None:
        return None
    try:
        return ToolSet(first.tools())
    except InputError as error:
        raise InputError(f"environment.class_name {name}: {error}") from None
    except Exception as error:  # any error of the user's code
        raise InputError(f"environment.class_name {name}: tools {_describe_error(error)}") from None


_CallParser = Callable[[str], list[ToolCall | MalformedCall]]


class _WithTools:
    """An environment with tools, which answer calls; the environment answers other responses."""

    def __init__(self, own: Any, tools: ToolSet, parse: _CallParser) -> None:
        self._own = own
        self._tools = tools
        self._parse = parse

    def reset(self, row: dict[str, Any], seed: int) -> Any:
        """See `Environment`."""
        return self._own.reset(row, seed)

    def step(self, response: str) -> Any:
        """See `Environment`; tools answer with a `ToolTurn`."""
        calls = self._parse(response)
        if not calls:
            return self._own.step(response)
        checked = [
            self._tools.check_call(call) if isinstance(call, ToolCall) else call for call in calls
        ]
        functions = {
            name: function for name, (_, function) in name_functions(self._own.tools()).items()
        }
        results = list[Any]()
        for call in checked:
            if isinstance(call, MalformedCall):
                results.append(f"Error: {call.why}")
            else:
                results.append(functions[call.name](**call.arguments))
        if any(map(inspect.isawaitable, results)):
            return _await_results(checked, results)
        return _build_tool_turn(checked, results)


async def _await_results(
    calls: Sequence[ToolCall | MalformedCall], results: Sequence[Any]
) -> ToolTurn:
    """Awaits all calls concurrently, then raises the first error."""

    async def await_result(result: Any) -> Any:
        if inspect.isawaitable(result):
            return await result
        return result

    found = await asyncio.gather(*map(await_result, results), return_exceptions=True)
    for error in (result for result in found if isinstance(result, BaseException)):
        raise error
    return _build_tool_turn(calls, found)


def _build_tool_turn(calls: Sequence[ToolCall | MalformedCall], results: Sequence[Any]) -> ToolTurn:
    contents = [_format_result(call, result) for call, result in zip(calls, results, strict=True)]
    malformed = sum(isinstance(call, MalformedCall) for call in calls)
    return ToolTurn(build_tool_messages(list(zip(calls, contents, strict=True))), malformed)


def _format_result(call: ToolCall | MalformedCall, result: Any) -> str:
    """Converts the result of a call to text."""
    if isinstance(result, str):
        return result
    try:
        return json.dumps(result, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        what = user_code.describe_object(result)
        raise _InvalidAnswer(
            f"has a tool {call.name} that returned {what}; return text or a JSON value"
        ) from None


async def _await_call(call: Any, limit_s: float) -> Any:
    """Returns the result of a call, awaited if awaitable."""
    if not inspect.isawaitable(call):
        return call
    limit = asyncio.timeout(limit_s)
    try:
        async with limit:
            return await call
    except TimeoutError:
        if not limit.expired():
            raise
        raise _InvalidAnswer(f"timed out after {limit_s:g} s") from None


def _parse_step_result(result: Any) -> dict[str, Any]:
    """Checks the result of a step."""
    if isinstance(result, ToolTurn):
        counts = {"calls": len(result.messages), "malformed": result.malformed}
        return {"observation": result.messages, "reward": 0.0, "done": False, "parts": {}} | counts
    if not isinstance(result, (tuple, list)) or len(result) != 3:
        raise _InvalidAnswer(
            f"returned {user_code.describe_object(result)}; return (observation, reward, done)"
        )
    observation, reward, done = result
    if not isinstance(observation, str):
        raise _InvalidAnswer(
            f"returned the observation {user_code.describe_object(observation)}; return text"
        )
    named = reward if isinstance(reward, Mapping) else {}
    try:
        parts = {str(name): user_code.read_reward(part) for name, part in named.items()}
        if isinstance(reward, Mapping):
            reward = _sum_rewards(parts.values())
        else:
            reward = user_code.read_reward(reward)
    except ValueError as error:
        raise _InvalidAnswer(f"returned the reward {error}") from None
    if done not in (True, False):
        raise _InvalidAnswer(
            f"returned {user_code.describe_object(done)} as done; return True or False"
        )
    return {
        "observation": replace_surrogates(observation),
        "reward": reward,
        "done": bool(done),
        "parts": parts,
    } | _NO_CALLS


def _sum_rewards(parts: Collection[float | None]) -> float | None:
    """The sum of rewards; None if any is None."""
    known = [part for part in parts if part is not None]
    if len(known) == len(parts):
        return sum(known, 0.0)
    return None


def _describe_error(error: Exception) -> str:
    return replace_surrogates(
        str(error) if isinstance(error, _InvalidAnswer) else user_code.describe_error(error)
    )
