"""Concurrent JSON requests to a running server, with deadlines and retries.

Uses the openai HTTP client for all servers, including ones with a different protocol.
"""

from __future__ import annotations

import os
from asyncio import Semaphore
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from lockstep.core.errors import InputError, RunError, install_command
from lockstep.system.fault_policy import RateLimitedNote, RetryCounter

try:
    import anyio
    import openai
    from anyio.from_thread import BlockingPortal, start_blocking_portal

    from lockstep.servers.bounded import BoundedClient, ReplyRefused
except ModuleNotFoundError as missing:
    raise InputError(
        f"a client for servers requires the package {missing.name}; {install_command('openai')}"
    ) from missing

_CONNECT_S = 10.0
"""Timeout of a connection; an answer can take longer."""

_PASSING = {408, 409, 429}
_OF_SERVERS = 500
"""Retryable client-error codes, and the first server-error code; all of those are retryable."""

_LONGEST_WAIT_S = 60.0

_ReplyT = TypeVar("_ReplyT", bound=BaseModel)


class ServerError(RunError):
    """A server is unreachable, rejects requests, or returns invalid answers; one sentence."""


LostRequestHandler = Callable[[int, ServerError], object]
"""Callback with a request's index and the reason for its missing answer."""


@dataclass(frozen=True)
class ServerAddress:
    """A server and its recipe options.

    Attributes:
        url: Base address, without the path of a request.
        option: The option with the address, for messages.
        api_key_env: The environment variable with the key.
        max_concurrency: Maximum number of concurrent requests.
        max_retries: Maximum number of retries per request.
    """

    url: str
    option: str
    api_key_env: str
    max_concurrency: int
    max_retries: int


class JsonServer:
    """Connections to a server, with error messages for failures.

    Args:
        address: The server.
        timeout_s: Time limit of a request before a retry, seconds.
        note: Shows a line.

    Raises:
        ServerError: The key is invalid.
    """

    def __init__(
        self, address: ServerAddress, timeout_s: float, note: Callable[[str], object]
    ) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._note = RateLimitedNote(note)
        self._key = os.environ.get(address.api_key_env, "").strip()
        if not all("!" <= character <= "~" for character in self._key):
            raise ServerError(
                f"the environment variable {address.api_key_env} has characters that a key cannot "
                "contain"
            )

    def request_all(
        self,
        shape: type[_ReplyT],
        path: str,
        bodies: Sequence[Mapping[str, object]],
        fault: Callable[[int, _ReplyT], str | None],
        lost: LostRequestHandler | None = None,
    ) -> Iterator[tuple[int, _ReplyT]]:
        """Sends all requests concurrently; cancels open ones if the caller stops iterating.

        Args:
            shape: The type of an answer.
            path: Path of the requests.
            bodies: The requests.
            fault: Returns the error in an answer, given its request's index; None if valid.
            lost: See `OpenAIClient.chat`.
        """
        gate = Semaphore(self._address.max_concurrency)

        async def request_one(client: openai.AsyncOpenAI, index: int) -> _ReplyT:
            async with gate:
                answered = await self.request_reply(client, shape, path, bodies[index])
            error = fault(index, answered)
            if error is not None:
                raise ServerError(f"{self._address.url}: {error}; check the server at this address")
            return answered

        with self.open_connection() as (portal, client):
            futures = {
                portal.start_task_soon(request_one, client, index): index
                for index in range(len(bodies))
            }
            for future in as_completed(futures):
                answered = _await_reply(future, lost, futures[future])
                if answered is not None:
                    yield futures[future], answered

    @contextmanager
    def open_connection(self) -> Iterator[tuple[BlockingPortal, openai.AsyncOpenAI]]:
        """Starts a thread with an event loop and a client."""
        client = openai.AsyncOpenAI(
            base_url=self._address.url,
            api_key=self._key or "none",
            max_retries=0,
            http_client=BoundedClient(
                self._timeout_s, min(_CONNECT_S, self._timeout_s), anonymous=not self._key
            ),
        )
        with start_blocking_portal() as portal, portal.wrap_async_context_manager(client):
            yield portal, client

    async def request_reply(
        self,
        client: openai.AsyncOpenAI,
        shape: type[_ReplyT],
        path: str,
        body: Mapping[str, object] | None = None,
    ) -> _ReplyT:
        """Returns the server's answer, retrying temporary failures; a GET without a body."""
        attempts = RetryCounter("server", self._note, self._address.max_retries)
        while True:
            try:
                if body is None:
                    answer = await client.get(path, cast_to=object)
                else:
                    answer = await client.post(path, cast_to=object, body=body)
                # some servers report errors with a success status
                if isinstance(answer, dict) and (reported := answer.get("error")):
                    raise ReplyRefused(
                        f"it returns an error ({_error_detail(reported)}); check its log"
                    )
                return shape.model_validate(answer)
            except (
                openai.OpenAIError,
                OSError,
                ValueError,
                OverflowError,
                RecursionError,
            ) as error:
                message = f"{self._address.url}: {self._describe_error(error, attempts.used + 1)}"
                if self._key:
                    message = message.replace(self._key, "[key]")
                wait_s = _find_shortest_wait(error)
                if wait_s is not None:
                    wait_s = attempts.next_wait(message, wait_s)
                if wait_s is None:
                    raise ServerError(message) from error
            await anyio.sleep(wait_s)

    def _describe_error(self, error: Exception, count: int) -> str:
        variable = self._address.api_key_env
        option = self._address.option
        attempts = f"{count} attempts"
        match error:
            case ReplyRefused():
                return str(error)
            case openai.APITimeoutError():
                return (
                    f"no response within {self._timeout_s:g} s, in {attempts}; check its log, "
                    "or raise timeout_s"
                )
            case openai.APIConnectionError():
                return (
                    f"cannot be reached ({error.__cause__}); start the server, or correct the "
                    f"option {option}"
                )
            case openai.AuthenticationError() | openai.PermissionDeniedError():
                return f"denies access; put the correct key in the environment variable {variable}"
            case openai.NotFoundError():
                return (
                    f"returns 404 at this address ({_error_detail(error.body)}); correct the "
                    "option "
                    f"{option}"
                )
            case openai.APIStatusError():
                return (
                    f"returns {error.status_code} after {attempts} ({_error_detail(error.body)}); "
                    "check "
                    "its log"
                )
            case ValidationError():
                problem = error.errors(include_url=False)[0]
                where = ".".join(map(str, problem["loc"])) or "the whole"
                return (
                    f"unexpected response format ({where}: {problem['msg']}); correct the option "
                    f"{option}"
                )
        return f"its response cannot be parsed ({error}); check the server at this address"


def _find_shortest_wait(error: Exception) -> float | None:
    """Minimum seconds before a retry, at most a minute; None: a retry cannot succeed.

    A retry may succeed after a connection failure, a timeout or a malformed reply, and if the
    server is busy, which can set the time by `Retry-After`.
    """
    if isinstance(error, ReplyRefused):
        return None
    if not isinstance(error, openai.APIStatusError):
        return 0.0
    if error.status_code not in _PASSING and error.status_code < _OF_SERVERS:
        return None
    seconds = error.response.headers.get("retry-after", "")
    if seconds.isdecimal():
        return min(float(seconds), _LONGEST_WAIT_S)
    return 0.0


def _await_reply(
    future: Future[_ReplyT], lost: LostRequestHandler | None, index: int
) -> _ReplyT | None:
    try:
        return future.result()
    except ServerError as error:
        if lost is None:
            raise
        lost(index, error)
        return None


def _error_detail(body: object) -> str:
    """Returns the server's error description in one line."""
    detail = body.get("message") if isinstance(body, dict) else body
    return " ".join(str(detail or "no details").split())[:300]
