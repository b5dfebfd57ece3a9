"""HTTP with limits on total time per attempt and reply size, even for slow servers."""

from __future__ import annotations

import ssl
from functools import cache
from typing import Any

import anyio
import httpx2
import openai

from lockstep.system.strict_json import HOOKS

LARGEST_REPLY = 64 * 2**20
"""Maximum number of bytes in a reply, far more than tokens and log-probabilities need."""


class ReplyRefused(openai.OpenAIError):
    """A reply that was rejected before its end; a retry would not help."""


class StrictReply(httpx2.Response):
    """A reply in strict JSON: unique keys and finite numbers."""

    def json(self, **options: Any) -> Any:
        """Returns the value; raises StrictJsonError if the JSON is not strict."""
        return super().json(**HOOKS | options)


class BoundedClient(openai.DefaultAsyncHttpxClient):
    """An HTTP client for one server, without redirects.

    Args:
        timeout_s: Deadline of an attempt, from the request to the last byte of the reply.
        connect_s: Timeout of the connection.
        anonymous: True to omit `Authorization`, which the openai client sends even without a key.
    """

    def __init__(self, timeout_s: float, connect_s: float, anonymous: bool = False) -> None:
        # Uncompressed, so that the counted bytes are the bytes in memory.
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
            httpx2.ReadTimeout: After the deadline; the openai client then retries.
            ReplyRefused: If the reply is too long, compressed, or a redirect.
        """
        options["follow_redirects"] = False
        if self._anonymous:
            request.headers.pop("Authorization", None)
        try:
            with anyio.fail_after(self._timeout_s):
                response = await super().send(request, stream=True, **options)
                try:
                    body = await _read_body(response)
                finally:
                    await response.aclose()
        except TimeoutError as error:
            raise httpx2.ReadTimeout("the reply took too long", request=request) from error
        return StrictReply(
            response.status_code, headers=response.headers, content=body, request=request
        )


@cache
def _read_authorities() -> ssl.SSLContext:
    """The CA certificates, read once, which is three quarters of the cost of a client."""
    return httpx2.create_ssl_context()


async def _read_body(response: httpx2.Response) -> bytes:
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
