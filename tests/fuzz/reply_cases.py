"""Hostile replies of servers, each with what a judge's client says of it: text that the sentence
holds.
"""

from __future__ import annotations

import json
import socket
import threading
from typing import Any

from raw_server import MODELS, Reply, http, raw


def completed(**fields: Any) -> dict[str, Any]:
    """A right answer to four tokens, but for these fields; `usage` and `choices` may be among
    them.
    """
    message = {"role": "assistant", "content": fields.pop("content", "so")}
    choice = {"index": 0, "message": message, "finish_reason": "length"} | fields
    usage = {"prompt_tokens": 2, "completion_tokens": 4}
    whole = {name: choice.pop(name) for name in ("usage", "choices") if name in choice}
    return {"choices": [choice], "usage": usage} | whole


def text_of(answer: str) -> Reply:
    """The answer, whose JSON is changed as text: `SO` stands for the response."""
    return http(answer.encode())


def wait(connection: socket.socket) -> None:
    """Never answers."""
    threading.Event().wait()


def interim(connection: socket.socket) -> None:
    """Says to go on, again and again."""
    while True:
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        threading.Event().wait(0.2)


def chunked(*pieces: bytes) -> Reply:
    return raw(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n",
        *pieces,
    )


def served(*models: Any) -> Reply:
    return http({"data": list(models)})


BODY = json.dumps(completed()).encode()
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"

POSTS: dict[str, tuple[Reply, str]] = {
    # counts
    "two choices for one": (http(completed(choices=[completed()["choices"][0]] * 2)), "choices"),
    "a count of 9,000 digits": (
        text_of(json.dumps(completed()).replace(": 4}", f": {'9' * 9000}}}")),
        "response",
    ),
    "no usage": (http(completed(usage=None)), "usage"),
    "a text that is a number": (http(completed(content=7)), "content"),
    "a text of 8 MB for 4 tokens": (http(completed(content="so " * 2_700_000)), "characters"),
    "a key twice": (
        text_of(json.dumps(completed()).replace('"content"', '"content": "no", "content"')),
        'the key "content" twice',
    ),
    "an error beside choices": (
        http(completed() | {"error": {"message": "out of memory"}}),
        "(out of memory)",
    ),
    "a choice for another request": (http(completed(index=1)), "index 1"),
    "a number that is not finite": (
        http(completed(usage={"prompt_tokens": 2, "completion_tokens": float("nan")})),
        "holds NaN, which is not a finite number",
    ),
    # bytes
    "nothing": (raw(), "cannot be reached"),
    "no content": (raw(b"HTTP/1.1 204 No Content\r\n\r\n"), "response"),
    "a body cut short": (raw(HEAD + b"Content-Length: 9999\r\n\r\n" + BODY), "cannot be reached"),
    "a chunk that never ends": (chunked(b"fff\r\n" + BODY), "cannot be reached"),
    "a header of a megabyte": (
        raw(HEAD + b"X: " + b"x" * 2**20 + b"\r\n\r\n" + BODY),
        "cannot be reached",
    ),
    "compressed though asked not to": (
        http(BODY, headers={"Content-Encoding": "gzip"}),
        "compresses replies",
    ),
    "a stream of events": (
        http(
            b"data: " + BODY + b"\n\ndata: [DONE]\n\n",
            headers={"Content-Type": "text/event-stream"},
        ),
        "response",
    ),
    "bytes that are no UTF-8": (http(BODY.replace(b"so", b"s\xff")), "response"),
    "100,000 brackets": (http(b"[" * 100_000), "response"),
    # statuses
    "moved to nowhere": (
        raw(b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n"),
        "redirects requests",
    ),
    "an error that obeys no one": (
        http({"error": {"message": "\x1b[2J\x1b]0;mine\x07gone\u202e"}}, "400 Bad"),
        "␛[2J",
    ),
    "an error that says success": (http({"error": {"message": "overloaded"}}), "overloaded"),
    "busy for 50 s": (http({}, "429 Busy", {"Retry-After": "50"}), "returns 429"),
    # time
    "never": (wait, "no response within"),
    "to go on, for ever": (interim, "no response within"),
}
"""Replies to a request of four tokens."""

TOLD_LATER = {"busy for 50 s", "never", "to go on, for ever"}
"""Those that take long, and say a word before."""

GETS: dict[str, tuple[Reply, str]] = {
    "models: 20,000 others": (served(*({"id": f"model-{n}"} for n in range(20_000))), "and 19,99"),
    "models: a name that moves the cursor": (served({"id": "\x1b[2Jm"}), "␛[2J"),
    "models: none": (served(), "no model"),
    "models: never": (wait, "no response within"),
}
"""Replies to the question which models are there."""

SLOW_GETS = {"models: never"}
__all__ = ["GETS", "MODELS", "POSTS", "SLOW_GETS", "TOLD_LATER", "completed"]
