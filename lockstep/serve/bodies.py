"""Bodies of requests: read with a limit on their size and time, as strict JSON."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from starlette.requests import ClientDisconnect, Request

from lockstep.serve.refusals import RequestRefused
from lockstep.system import strict_json

_SLOWEST_S = 30.0
"""Most time between the first and the last byte of a body."""


async def read_json(request: Request, most_mib: float) -> dict[str, Any]:
    """Reads a body, an object.

    Raises:
        RequestRefused: It is too long or too slow, or no JSON object.
    """
    try:
        async with asyncio.timeout(_SLOWEST_S):
            data = await _read_bytes(request, int(most_mib * 2**20))
    except TimeoutError:
        raise RequestRefused(408, f"the body took more than {_SLOWEST_S:g} s") from None
    except ClientDisconnect:
        raise RequestRefused(400, "the body was cut off") from None
    try:
        found = json.loads(data or b"{}", **strict_json.HOOKS)
        if b"\\u" in data:
            json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise RequestRefused(400, "the body holds half a character, such as \\ud83d") from None
    except strict_json.StrictJsonError as error:
        raise RequestRefused(400, f"the body {error}") from None
    except (ValueError, RecursionError) as error:
        raise RequestRefused(400, f"the body is no JSON ({error})") from None
    if not isinstance(found, dict):
        raise RequestRefused(400, "the body must be a JSON object")
    return found


async def _read_bytes(request: Request, most: int) -> bytes:
    read = bytearray()
    async for chunk in request.stream():
        read += chunk
        if len(read) > most:
            raise RequestRefused(
                413, f"the body is longer than {most:,} bytes; send less, or raise max_body_mib"
            )
    return bytes(read)


async def await_disconnect(request: Request) -> None:
    """Returns when the client has left; only after the body was read."""
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            return
