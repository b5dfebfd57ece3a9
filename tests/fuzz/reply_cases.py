"""Hostile replies of servers, each with what `lockstep generate` says of it: text that the sentence holds."""

from __future__ import annotations

import json
import socket
import threading
from typing import Any

from raw_server import MODELS, Reply, http, raw

LOGGED = {"logprobs": {"token_logprobs": [-1, -1, -1, -1]}}


def completed(**fields: Any) -> dict[str, Any]:
    """A right answer to four tokens, but for these fields; `usage` and `choices` may be among them."""
    choice = {"index": 0, "text": "so", "finish_reason": "length", "token_ids": [2, 3, 4, 5]} | LOGGED | fields
    usage = {"prompt_tokens": 2, "completion_tokens": 4}
    whole = {name: choice.pop(name) for name in ("usage", "choices") if name in choice}
    return {"choices": [choice], "usage": usage} | whole


def logged(*values: Any, **fields: Any) -> Reply:
    """An answer with these log-probabilities."""
    return http(completed(logprobs={"token_logprobs": list(values), **fields}))


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
    return raw(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n", *pieces)


def served(*models: Any) -> Reply:
    return http({"data": list(models)})


BODY = json.dumps(completed()).encode()
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
PROTOCOL = "is not as OpenAI's protocol has it"

POSTS: dict[str, tuple[Reply, str]] = {
    # counts
    "two choices for one": (http(completed(choices=[completed()["choices"][0]] * 2)), "choices"),
    "token ids as text": (http(completed(token_ids=["2", "3", "4", "5"])), "token_ids"),
    "token ids as truth values": (http(completed(token_ids=[True] * 4)), "token_ids"),
    "token ids as fractions": (http(completed(token_ids=[2.0, 3.0, 4.0, 5.0])), "token_ids"),
    "a count as text": (http(completed(token_ids=None, usage={"prompt_tokens": 2, "completion_tokens": "4"})), "usage"),
    "a count that is true": (
        http(completed(token_ids=None, usage={"prompt_tokens": 2, "completion_tokens": True})),
        "usage",
    ),
    "a count that is infinite": (
        text_of(json.dumps(completed(token_ids=None)).replace('_tokens": 4', '_tokens": 1e999')),
        "holds 1e999",
    ),
    "a count of 9,000 digits": (text_of(json.dumps(completed()).replace("[2,", f"[{'9' * 9000},")), "answer"),
    "ids and count that differ": (http(completed(usage={"prompt_tokens": 2, "completion_tokens": 1})), ""),
    "no usage": (http(completed(usage=None, token_ids=None)), "usage"),
    "a message of a list": (http(completed(message={"content": ["so"]})), "content"),
    "a text that is null": (http(completed(text=None)), "text"),
    "a text of a number": (http(completed(text=7)), "text"),
    "a text of 8 MB for 4 tokens": (http(completed(text="so " * 2_700_000)), "characters"),
    "an end of a number": (http(completed(finish_reason=3)), "finish_reason"),
    "choices as a mapping": (http(completed(choices={"0": completed()["choices"][0]})), "choices"),
    "a key twice": (text_of(json.dumps(completed()).replace('"text"', '"text": "no", "text"')), 'the key "text" twice'),
    "an error beside choices": (http(completed() | {"error": {"message": "out of memory"}}), "(out of memory)"),
    "an error in a choice": (http(completed(error="filtered")), "its choice holds an error (filtered)"),
    "a choice for another request": (http(completed(index=1)), "index 1"),
    # log-probabilities
    "a log-probability of NaN": (logged(-1, float("nan"), -1, -1), "holds NaN, which is not a finite number"),
    "a log-probability above 0": (logged(-1, -1, 2.5, -1), "logprobs"),
    "a log-probability of minus infinity": (logged(-1, -1, float("-inf"), -1), "holds -Infinity"),
    "a log-probability of infinity": (
        text_of(json.dumps(completed(logprobs={"token_logprobs": [0] * 4})).replace("[0,", "[1e999,")),
        "holds 1e999",
    ),
    "a log-probability as text": (logged("-1", "-1", "-1", "-1"), "logprobs"),
    "a log-probability of null": (logged(None, -1, -1, -1), "logprobs"),
    "log-probabilities that are true": (logged(False, False, False, False), "logprobs"),
    "log-probabilities as one number": (http(completed(logprobs={"token_logprobs": -1})), "logprobs"),
    "log-probabilities of chats": (http(completed(logprobs={"content": [{"token": "a", "logprob": -1}]})), "logprobs"),
    "log-probabilities of other tokens": (
        logged(-1, -1, -1, -1, tokens=["token_id:9", "token_id:3", "token_id:4", "token_id:5"]),
        "other tokens",
    ),
    # bytes
    "nothing": (raw(), "cannot be reached"),
    "bytes of no HTTP": (raw(b"hello\n"), "cannot be reached"),
    "an empty body": (http(b""), "answer"),
    "no content": (raw(b"HTTP/1.1 204 No Content\r\n\r\n"), "answer"),
    "a body cut short": (raw(HEAD + b"Content-Length: 9999\r\n\r\n" + BODY), "cannot be reached"),
    "a length that is too short": (raw(HEAD + b"Content-Length: 20\r\nConnection: close\r\n\r\n" + BODY), "answer"),
    "a length that is none": (raw(HEAD + b"Content-Length: many\r\n\r\n" + BODY), "cannot be reached"),
    "a length below nothing": (raw(HEAD + b"Content-Length: -5\r\n\r\n" + BODY), "cannot be reached"),
    "a chunk of no size": (chunked(b"zz\r\n" + BODY), "cannot be reached"),
    "a chunk that never ends": (chunked(b"fff\r\n" + BODY), "cannot be reached"),
    "a header of a megabyte": (raw(HEAD + b"X: " + b"x" * 2**20 + b"\r\n\r\n" + BODY), "cannot be reached"),
    "headers without an end": (raw(HEAD * 3), "cannot be reached"),
    "compressed though asked not to": (http(BODY, headers={"Content-Encoding": "gzip"}), "compresses its replies"),
    "a stream of events": (
        http(b"data: " + BODY + b"\n\ndata: [DONE]\n\n", headers={"Content-Type": "text/event-stream"}),
        "answer",
    ),
    "JSON of another type": (http(BODY, headers={"Content-Type": "text/plain"}), "answer"),
    "UTF-16": (http(json.dumps(completed()).encode("utf-16")), ""),
    "bytes that are no UTF-8": (http(BODY.replace(b"so", b"s\xff")), "answer"),
    "100,000 brackets": (http(b"[" * 100_000), "answer"),
    "two answers in one": (http(BODY + BODY), "answer"),
    "a body cut in a character": (http('{"choices": [{"text": "ü'.encode()[:-1]), "answer"),
    # statuses
    "moved to nowhere": (raw(b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n"), "sends requests on"),
    "moved in a circle": (
        raw(b"HTTP/1.1 301 M\r\nLocation: /v1/completions\r\nContent-Length: 0\r\n\r\n"),
        "sends req",
    ),
    "not modified": (raw(b"HTTP/1.1 304 Not Modified\r\n\r\n"), ""),
    "an error that obeys no one": (
        http({"error": {"message": "\x1b[2J\x1b]0;mine\x07gone\u202e"}}, "400 Bad"),
        "␛[2J",
    ),
    "an error page of a megabyte": (http(b"<html>" + b"x" * 2**20, "400 Bad", {"Content-Type": "text/html"}), "400"),
    "an error in latin-1": (http(b"caf\xe9", "400 Bad", {"Content-Type": "text/plain"}), "400"),
    "an error of nothing": (http(b"", "422 No"), "422"),
    "an error as a list": (http(["no"], "403 No"), ""),
    "an error of 100,000 brackets": (http(b"[" * 100_000, "400 Bad"), "400"),
    "a status of 999": (http(completed(), "999 Odd"), "999"),
    "a status of no number": (raw(b"HTTP/1.1 OK\r\n\r\n" + BODY), "cannot be reached"),
    "an error that says success": (http({"error": {"message": "overloaded"}}), "overloaded"),
    "an error in bytes": (http(bytes(range(128, 256)), "500 Bad"), "500"),
    "busy for 50 s": (http({}, "429 Busy", {"Retry-After": "50"}), "answers 429"),
    # time
    "never": (wait, "no answer within"),
    "to go on, for ever": (interim, "no answer within"),
}
"""Replies to a request of four tokens with log-probabilities."""

TOLD_LATER = {"busy for 50 s", "never", "to go on, for ever"}
"""Those that take long, and say a word before."""

GETS: dict[str, tuple[Reply, str]] = {
    "models: null": (http({"data": None}), "data"),
    "models: a number for a name": (served({"id": 5}), "data.0.id"),
    "models: HTML": (http(b"<html>hello</html>", headers={"Content-Type": "text/html"}), "answer"),
    "models: 100,000 brackets": (http(b"[" * 100_000), "answer"),
    "models: a length below nothing": (served({"id": "m", "owned_by": "vllm", "max_model_len": -1}), "max_model_len"),
    "models: a length as text": (served({"id": "m", "owned_by": "vllm", "max_model_len": "96"}), "max_model_len"),
    "models: 20,000 others": (served(*({"id": f"model-{n}"} for n in range(20_000))), "and 19,99"),
    "models: a name that moves the cursor": (served({"id": "\x1b[2Jm"}), "␛[2J"),
    "models: an owner that moves the cursor": (served({"id": "m", "owned_by": "\x1b[2J\u202e"}), ""),
    "models: half a character": (served({"id": "\ud800"}), "serves"),
    "models: twice the same": (served({"id": "m", "owned_by": "vllm"}, {"id": "m", "owned_by": "sglang"}), ""),
    "models: none": (served(), "no model"),
    "models: never": (wait, "no answer within"),
}
"""Replies to the question which models are there."""

SLOW_GETS = {"models: never"}
__all__ = ["GETS", "MODELS", "POSTS", "SLOW_GETS", "TOLD_LATER", "completed"]
