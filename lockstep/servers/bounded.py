"""A connection with bounds: an attempt ends by its deadline and a reply at a size, however slowly a
server sends.
"""

from __future__ import annotations

import ssl
from functools import cache
from typing import Any

import anyio
import httpx2
import openai

from lockstep.system.strict_json import HOOKS

LARGEST_REPLY = 64 * 2**20
"""Most bytes of a reply, far more than tokens with their log-probabilities take."""


class ReplyRefused(openai.OpenAIError):
    """A reply that is not read to its end; asking again would not help."""


class StrictReply(httpx2.Response):
    """A reply whose JSON has each key once, and only finite numbers."""

    def json(self, **options: Any) -> Any:
        """The value; raises StrictJsonError where only Python's parser would take it."""
        return super().json(**HOOKS | options)


class BoundedClient(openai.DefaultAsyncHttpxClient):
    """An HTTP client for one server; it follows no redirects.

    Args:
        timeout_s: Deadline of an attempt, from the request to the last byte of the reply.
        connect_s: Timeout of the connection.
        anonymous: Sends no `Authorization`: openai's client has one even without a key.
    """

    def __init__(self, timeout_s: float, connect_s: float, anonymous: bool = False) -> None:
        # Uncompressed, so that the bytes that are counted are those that fill the memory.
        super().__init__(
            timeout=httpx2.Timeout(timeout_s, connect=connect_s),
            headers={"accept-encoding": "identity"},
            follow_redirects=False,
            verify=_read_authorities(),
        )
        self._timeout_s = timeout_s
        self._anonymous = anonymous

    async def send(
        self, request: httpx2.Request, *, stream: bool = False, **options: Any
    ) -> httpx2.Response:
        """Sends a request and reads the whole reply.

        Raises:
            httpx2.ReadTimeout: After the deadline; openai's client then tries again.
            ReplyRefused: If the reply is too long, compressed, or sends the client elsewhere.
        """
        options["follow_redirects"] = False
        if self._anonymous:
            request.headers.pop("Authorization", None)
        try:
            with anyio.fail_after(self._timeout_s):
                response = await super().send(request, stream=True, **options)
                try:
                    body = await _read(response)
                finally:
                    await response.aclose()
        except TimeoutError as error:
            raise httpx2.ReadTimeout("the reply took too long", request=request) from error
        return StrictReply(
            response.status_code, headers=response.headers, content=body, request=request
        )


@cache
def _read_authorities() -> ssl.SSLContext:
    """The certificates of authorities, read once: that is three quarters of the cost of a
    client.
    """
    return httpx2.create_ssl_context()


async def _read(response: httpx2.Response) -> bytes:
    if response.is_redirect:
        where = response.headers.get("location", "an unknown address")
        raise ReplyRefused(f"it redirects requests to {where}; use that address if it is correct")
    if response.headers.get("content-encoding", "identity") != "identity":
        raise ReplyRefused("it compresses replies despite the request headers; disable compression")
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > LARGEST_REPLY:
            raise ReplyRefused(
                f"its reply is longer than {LARGEST_REPLY // 2**20} MiB; check the server at this "
                "address"
            )
    return bytes(body)
