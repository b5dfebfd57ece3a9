"""A client for a server that speaks OpenAI's protocol: vLLM's, SGLang's, TensorRT-LLM's `trtllm-serve`, or another.

The server is there already and has its weights: nothing can be sent to it but requests. So what it is, what it can do
and how its responses ended is checked as far as its own words allow (docs/guides/servers.md).
"""

from __future__ import annotations

import asyncio
import os
import warnings
from asyncio import Semaphore
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, as_completed
from contextlib import contextmanager
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from lockstep import config
from lockstep.errors import InputError, RunError
from lockstep.fault_policy import Attempts, Seldom
from lockstep.samplers.openai.dialects import DIALECTS, Completion, Dialect, Ends, Model, Models
from lockstep.types import Reply, Request, SamplingParams

try:
    import anyio
    import openai
    from anyio.from_thread import BlockingPortal, start_blocking_portal

    from lockstep.samplers.openai.bounded import BoundedClient, ReplyRefused
except ModuleNotFoundError as missing:
    raise InputError(
        f"a client for servers needs the package {missing.name}, which is not installed: "
        "pip install 'lockstep-rl[openai]'"
    ) from missing

_CONNECT_S = 10.0
"""Timeout of a connection; an answer may take longer."""

_SILENCE_S = 10.0
"""Silence of a request before the user is told."""

_SHOWN_MODELS = 5

_WARN_FROM = 0.01
"""Share of bad ends from which on the user is warned."""

_SEED_BITS = 2**63 - 1
"""Mask of seeds that every server takes: not negative, in a signed 64-bit integer."""

_PASSING, _OF_SERVERS = {408, 409, 429}, 500
"""Status codes after which the same request may succeed; and the first of those that are the server's own fault."""

_LONGEST_WAIT_S = 60.0

_Shape = TypeVar("_Shape", bound=BaseModel)


class ServerError(RunError):
    """A server cannot be reached, refuses, or answers wrongly; one sentence."""


Lost = Callable[[int, ServerError], object]
"""Callback with the place of a request, and why there is no answer to it."""


class OpenAIClient:
    """A client that requests completions of prompts and answers to conversations from a server.

    Args:
        options: Which server, and how to ask it.
        timeout_s: A request that is not answered within this is sent again.
        vocabulary: Size of the model's vocabulary, to find token ids outside of it; None: they are not checked.
        note: Shows the user a line.

    Attributes:
        answers: Number of replies.
        bad_ends: Number of them that ended as they should not: at no stop token, short of `max_tokens`, for an unknown
            reason, or with a token that is not in the vocabulary.

    Raises:
        ServerError: If the server cannot be reached, refuses the key, or does not serve the model.
    """

    def __init__(
        self,
        options: config.OpenAI,
        timeout_s: float,
        vocabulary: int | None = None,
        note: Callable[[str], object] = warnings.warn,
    ) -> None:
        self.answers = self.bad_ends = 0
        self._server = _Server(options, timeout_s, note)
        self._options, self._vocabulary, self._note = options, vocabulary, note
        self._warned = False
        self._model = self._ask_model()
        self._dialect = self._find_dialect()

    def replies(
        self, requests: Sequence[Request], sampling: SamplingParams, logprobs: bool = False
    ) -> Iterator[tuple[int, Reply]]:
        """Completes prompts, which go out as token ids.

        Returns:
            Places in `requests` and their replies, as they come.

        Raises:
            ValueError: If the server lacks a requested option.
            ServerError: While iterating, if the server fails after all retries.
        """
        if logprobs:
            self._dialect.require_exact(sampling)
        options = self._fields(sampling) | {"max_tokens": sampling.max_tokens, **self._dialect.only_our_stops}
        options |= {"logprobs": 1} if logprobs else {}
        bodies = [options | {"prompt": list(request.tokens), "seed": _seed(request.key)} for request in requests]
        return self._replies("/completions", bodies, self._ends(sampling, sampling.stop_token_ids))

    def chat(
        self,
        conversations: Sequence[Sequence[Mapping[str, str]]],
        sampling: SamplingParams,
        keys: Sequence[int],
        lost: Lost | None = None,
    ) -> Iterator[tuple[int, Reply]]:
        """Continues conversations in the server's own chat template; the model's own stop tokens end an answer too.

        Args:
            conversations: Messages with `role` and `content`.
            sampling: The sampling distribution.
            keys: Keys of the random numbers, one per conversation.
            lost: Takes each failure after all retries, and the others continue; None: the first failure is an error.

        Returns:
            As `replies`.

        Raises:
            ValueError, ServerError: As `replies`.
        """
        options = self._fields(sampling) | {"max_completion_tokens": sampling.max_tokens}
        pairs = zip(conversations, keys, strict=True)
        bodies = [options | {"messages": [dict(m) for m in messages], "seed": _seed(key)} for messages, key in pairs]
        return self._replies("/chat/completions", bodies, self._ends(sampling, None), lost)

    def _ask_model(self) -> Model:
        """Queries the model that is served."""
        with self._server.connection() as (portal, client):
            served = {model.id: model for model in portal.call(self._server.ask, client, Models, "/models").data}
        if self._options.model not in served:
            others = [*list(served)[:_SHOWN_MODELS]]
            others += [f"and {len(served) - _SHOWN_MODELS:,} more"] if len(served) > _SHOWN_MODELS else []
            raise ServerError(
                f"{self._options.base_url}: serves {', '.join(others) or 'no model'}, and not {self._options.model}; "
                "correct the option model"
            )
        return served[self._options.model]

    def _find_dialect(self) -> Dialect:
        owner = self._model.owned_by
        if owner in DIALECTS:
            return DIALECTS[owner]
        self._note(
            f"{self._options.base_url}: the server calls itself {owner!r}, which is not known here; it is asked in "
            "OpenAI's own words, and stops where it will"
        )
        return Dialect(f"a server called {owner!r}")

    def _fields(self, sampling: SamplingParams) -> dict[str, object]:
        return {"model": self._model.id, **self._dialect.fields(sampling)}

    def _ends(self, sampling: SamplingParams, stops: tuple[int, ...] | None) -> Ends:
        return Ends(sampling.max_tokens, stops, self._vocabulary, self._model.max_model_len)

    def _replies(
        self, path: str, bodies: Sequence[Mapping[str, object]], ends: Ends, lost: Lost | None = None
    ) -> Iterator[tuple[int, Reply]]:
        """Sends all requests, and counts how their responses end."""
        for place, answer in self._server.answers(path, bodies, ends.max_tokens, lost):
            choice = answer.choices[0]
            logprobs = tuple(choice.logprobs.token_logprobs) if choice.logprobs else None
            if "logprobs" in bodies[place] and len(logprobs or ()) != answer.num_tokens:
                raise ServerError(
                    f"{self._options.base_url}: {answer.num_tokens} tokens came with {len(logprobs or ())} "
                    "log-probabilities; do without them"
                )
            self.answers += 1
            self.bad_ends += ends.are_broken_by(answer)
            text = choice.text or choice.message.content or ""
            yield place, Reply(text, answer.num_tokens, choice.finish_reason or "none", logprobs)
        self._warn()

    def _warn(self) -> None:
        """Warns once that responses end badly."""
        if not self._warned and self.bad_ends and self.bad_ends >= _WARN_FROM * self.answers:
            self._warned = True
            self._note(
                f"{self._options.base_url}: {self.bad_ends} of {self.answers} responses ended badly (at no stop token, "
                "short of max_tokens, cut off, or with tokens outside the vocabulary); compare the server's model and "
                "settings with yours"
            )


class _Server:
    """Connections to a server, with error sentences for their failures."""

    def __init__(self, options: config.OpenAI, timeout_s: float, note: Callable[[str], object]) -> None:
        self._options, self._timeout_s, self._note = options, timeout_s, note
        self._seldom, self._told_of_slowness = Seldom(note), False
        self._key = os.environ.get(options.api_key_env, "").strip()
        if not all("!" <= character <= "~" for character in self._key):
            raise ServerError(f"the environment variable {options.api_key_env} holds characters that no key has")

    def answers(
        self, path: str, bodies: Sequence[Mapping[str, object]], max_tokens: int, lost: Lost | None
    ) -> Iterator[tuple[int, Completion]]:
        """Sends all requests, `max_concurrency` at once; those under way when the caller leaves are canceled."""
        gate = Semaphore(self._options.max_concurrency)

        async def answer(client: openai.AsyncOpenAI, body: Mapping[str, object]) -> Completion:
            async with gate:
                answered = await self.ask(client, Completion, path, body)
            fault = answered.fault(max_tokens)
            if fault is not None:
                raise ServerError(f"{self._options.base_url}: {fault}; look at what serves there")
            return answered

        with self.connection() as (portal, client):
            futures = {portal.start_task_soon(answer, client, body): place for place, body in enumerate(bodies)}
            for future in as_completed(futures):
                answered = _wait_for(future, lost, futures[future])
                if answered is not None:
                    yield futures[future], answered

    @contextmanager
    def connection(self) -> Iterator[tuple[BlockingPortal, openai.AsyncOpenAI]]:
        """Opens a thread with an event loop, and a client in it."""
        client = openai.AsyncOpenAI(
            base_url=self._options.base_url,
            api_key=self._key or "none",
            max_retries=0,
            http_client=BoundedClient(self._timeout_s, min(_CONNECT_S, self._timeout_s)),
        )
        with start_blocking_portal() as portal, portal.wrap_async_context_manager(client):
            yield portal, client

    async def ask(
        self, client: openai.AsyncOpenAI, shape: type[_Shape], path: str, body: Mapping[str, object] | None = None
    ) -> _Shape:
        """Returns the server's answer, asking again where the fault may pass; without a body it is a plain GET.

        Says once that an answer takes long.
        """
        attempts = Attempts("server", self._seldom, self._options.max_retries)
        while True:
            slow = asyncio.get_running_loop().call_later(_SILENCE_S, self._say_slow)
            try:
                return _read(shape, await self._ask_once(client, path, body))
            except (openai.OpenAIError, OSError, ValueError, OverflowError, RecursionError) as error:
                message = f"{self._options.base_url}: {self._sentence(error, attempts.used + 1)}"
                message = message.replace(self._key, "[key]") if self._key else message
                wait_s = attempts.next_wait(message, _find_retry_after(error)) if _may_pass(error) else None
                if wait_s is None:
                    raise ServerError(message) from error
            finally:
                slow.cancel()
            await anyio.sleep(wait_s)

    async def _ask_once(self, client: openai.AsyncOpenAI, path: str, body: Mapping[str, object] | None) -> object:
        if body is None:
            return await client.get(path, cast_to=object)
        return await client.post(path, cast_to=object, body=body)

    def _say_slow(self) -> None:
        if not self._told_of_slowness:
            self._told_of_slowness = True
            self._note(
                f"{self._options.base_url}: no answer for {_SILENCE_S:g} s; each of {self._options.max_retries + 1} "
                f"attempts may take {self._timeout_s:g} s (timeout_s)"
            )

    def _sentence(self, error: Exception, count: int) -> str:
        variable, attempts = self._options.api_key_env, f"{count} attempts"
        match error:
            case ReplyRefused():
                return str(error)
            case openai.APITimeoutError():
                return f"no answer within {self._timeout_s:g} s, in {attempts}; look at its log, or raise timeout_s"
            case openai.APIConnectionError():
                return f"cannot be reached ({error.__cause__}); start the server, or correct the option base_url"
            case openai.AuthenticationError() | openai.PermissionDeniedError() if self._key:
                return f"refuses the key in the environment variable {variable}; put the right one there"
            case openai.AuthenticationError() | openai.PermissionDeniedError():
                return f"wants a key; put it into the environment variable {variable}"
            case openai.NotFoundError():
                return f"has nothing at this address ({_detail(error.body)}); base_url usually ends in /v1"
            case openai.RateLimitError() | openai.InternalServerError():
                return (
                    f"answers {error.status_code} after {attempts} ({_detail(error.body)}); look at its log, lower "
                    "max_concurrency, or raise max_retries"
                )
            case openai.APIStatusError():
                return f"refuses a request with {error.status_code} ({_detail(error.body)})"
            case ValidationError():
                problem = error.errors(include_url=False)[0]
                where = ".".join(map(str, problem["loc"])) or "the whole"
                return f"its answer is not as OpenAI's protocol has it ({where}: {problem['msg']})"
        return f"its answer cannot be read ({error}); look at what serves there"


def _read(shape: type[_Shape], answer: object) -> _Shape:
    """Reads a reply as one of its kind; some servers tell of an error with the status of a success."""
    match answer:
        case {"error": error, **rest} if not rest:
            raise ReplyRefused(f"it answers with an error ({_detail(error)}); look at its log")
        case _:
            return shape.model_validate(answer)


def _may_pass(error: Exception) -> bool:
    """True where a server may do better later: it was lost, was late or busy, or what came is no reply of its kind."""
    if isinstance(error, openai.APIStatusError):
        return error.status_code in _PASSING or error.status_code >= _OF_SERVERS
    return not isinstance(error, ReplyRefused)


def _find_retry_after(error: Exception) -> float:
    """Seconds that a busy server asks to be left alone, as far as that is a minute."""
    asked = error.response.headers.get("retry-after", "") if isinstance(error, openai.APIStatusError) else ""
    return min(float(asked), _LONGEST_WAIT_S) if asked.isdecimal() else 0.0


def _wait_for(future: Future[Completion], lost: Lost | None, place: int) -> Completion | None:
    try:
        return future.result()
    except ServerError as error:
        if lost is None:
            raise
        lost(place, error)
        return None


def _detail(body: object) -> str:
    """Returns the server's own account of an error, in one line."""
    said = body.get("message") if isinstance(body, dict) else body
    return " ".join(str(said or "no more is said").split())[:300]


def _seed(key: int) -> int:
    return key & _SEED_BITS
