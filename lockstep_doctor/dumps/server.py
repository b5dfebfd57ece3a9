"""The column of a server that says the log-probabilities of a prompt, as vLLM and SGLang do."""

from __future__ import annotations

import http.client
import json
import math
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import torch
from torch import Tensor

from lockstep_doctor.column import TokenColumns
from lockstep_doctor.dumps.names import DumpError
from lockstep_doctor.dumps.read import LARGEST, Dump, is_number

_MOST_BYTES = 256 * 2**20
_CHUNK = 2**16


@dataclass(frozen=True)
class Server:
    """A server, and how it is asked.

    Attributes:
        url: Such as `http://localhost:8000`, with or without `/v1`.
        model: Name of the model there; None: the first that it lists.
        key: Sent as a bearer token; it is never part of a message.
        timeout_s: Seconds for one reply, whole.
    """

    url: str
    model: str | None = None
    key: str | None = None
    timeout_s: float = 120.0

    def __repr__(self) -> str:
        return f"Server({self.place})"

    @property
    def base(self) -> str:
        """The address without `/v1`."""
        return self.url.rstrip("/").removesuffix("/v1")

    @property
    def place(self) -> str:
        """The address without what may be secret in it."""
        parts = urlsplit(self.base)
        return f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}{parts.path}"

    def ask(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Returns a reply's JSON; without a body by GET.

        Raises:
            DumpError: There is none in time, or it is no JSON.
        """
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self.key}"} if self.key else {})
        data = None if body is None else json.dumps(body).encode()
        try:
            request = urllib.request.Request(f"{self.base}{path}", data, headers)
            with _OPENER.open(request, timeout=self.timeout_s) as reply:
                return json.loads(self._read(reply))
        except urllib.error.HTTPError as error:
            raise DumpError(f"{self.place}{path}: replies {error.code}") from None
        except (OSError, RecursionError, ValueError, http.client.HTTPException) as error:
            if isinstance(error, DumpError):
                raise
            if isinstance(error, urllib.error.URLError):
                raise DumpError(f"{self.place}: cannot be reached: {error.reason}") from None
            raise DumpError(f"{self.place}{path}: no JSON comes ({type(error).__name__})") from None

    def _read(self, reply: Any) -> bytes:
        end, read = time.monotonic() + self.timeout_s, bytearray()
        while chunk := reply.read1(_CHUNK):
            read += chunk
            if len(read) > _MOST_BYTES:
                raise DumpError(f"{self.place}: sends more than {_MOST_BYTES:,} bytes")
            if time.monotonic() > end:
                raise DumpError(f"{self.place}: has not replied in {self.timeout_s:g} s")
        return bytes(read)


class _Stay(urllib.request.HTTPRedirectHandler):
    """Follows no redirection: the key is for one server alone."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_Stay)

Api = Callable[[Server, list[int]], list[Any]]
"""Function that asks for the log-probabilities of ids; one entry for each, whatever the server sent there."""


def score_by_url(server: Server | str, sequences: Sequence[Tensor | Sequence[int]]) -> Dump:
    """Asks a server for the log-probabilities of sequences, and returns them as a dump's inference side.

    Args:
        sequences: Ids of each, prompt and response.

    Raises:
        DumpError: The server has no log-probabilities of prompts, or replies with something else.
    """
    server = Server(server) if isinstance(server, str) else server
    if urlsplit(server.base).scheme not in ("http", "https"):
        raise DumpError("this is no address of a server; write http://HOST:PORT")
    rows = [torch.as_tensor(ids).long().flatten().tolist() for ids in sequences]
    if not rows or min(map(len, rows)) < 2:
        raise DumpError("a server is asked about sequences of two ids or more; the first one has no log-probability")
    api, first = _choose(server, rows[0])
    columns = [first, *(_check(server, ids, api(server, ids)) for ids in rows[1:])]
    infer, lengths = torch.cat(columns), torch.tensor([len(ids) for ids in rows])
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    ids = torch.tensor([one for row in rows for one in row])
    return Dump(TokenColumns(torch.full_like(infer, math.nan), infer, ~infer.isnan(), offsets, ids), None, server.place)


def _choose(server: Server, ids: list[int]) -> tuple[Api, Tensor]:
    """The first way to ask that gets an answer, and the answer."""
    reasons: dict[str, str] = {}
    for name, api in _APIS.items():
        try:
            return api, _check(server, ids, api(server, ids))
        except DumpError as error:
            reasons[name] = str(error)
    if len(set(reasons.values())) == 1:
        raise DumpError(reasons.popitem()[1])
    why = "; ".join(f"as {name}: {reason}" for name, reason in reasons.items())
    raise DumpError(f"{server.place}: gives no log-probabilities of a prompt; {why}")


def _ask_vllm(server: Server, ids: list[int]) -> list[Any]:
    said = _list(_complete(server, {"prompt": ids, "prompt_logprobs": 1}), "choices", 0, "prompt_logprobs")
    return [_dig(one, str(token), "logprob") for token, one in zip(ids, said, strict=False)]


def _ask_sglang(server: Server, ids: list[int]) -> list[Any]:
    sampling = {"max_new_tokens": 1, "temperature": 0}
    body = {"input_ids": ids, "sampling_params": sampling, "return_logprob": True, "logprob_start_len": 0}
    said = _list(server.ask("/generate", body), "meta_info", "input_token_logprobs")
    if [_dig(one, 1) for one in said] != ids:
        raise DumpError("input_token_logprobs are of other ids")
    return [_dig(one, 0) for one in said]


def _ask_with_echo(server: Server, ids: list[int]) -> list[Any]:
    reply = _complete(server, {"prompt": ids, "echo": True, "logprobs": 1})
    return _list(reply, "choices", 0, "logprobs", "token_logprobs")[: len(ids)]


_APIS: Mapping[str, Api] = {"vLLM": _ask_vllm, "SGLang": _ask_sglang, "OpenAI's echo": _ask_with_echo}


def _complete(server: Server, body: Mapping[str, Any]) -> Any:
    model = server.model or _dig(server.ask("/v1/models"), "data", 0, "id")
    if not isinstance(model, str):
        raise DumpError("no name of a model in the reply; say Server(model=…)")
    return server.ask("/v1/completions", {"model": model, "max_tokens": 1, "temperature": 0, **body})


def _dig(reply: Any, *steps: str | int) -> Any:
    """The part of a reply under some keys and places; None where there is nothing."""
    for step in steps:
        if isinstance(step, str):
            reply = reply.get(step) if isinstance(reply, dict) else None
        else:
            reply = reply[step] if isinstance(reply, list) and len(reply) > step else None
    return reply


def _list(reply: Any, *steps: str | int) -> list[Any]:
    found = _dig(reply, *steps)
    if not isinstance(found, list):
        raise DumpError(f"no {steps[-1]} in the reply")
    return found


def _check(server: Server, ids: Sequence[int], said: Sequence[Any]) -> Tensor:
    """The column of one sequence, float64 [T]; NaN for the first id."""
    if len(said) != len(ids):
        raise DumpError(f"{server.place}: replies with {len(said)} log-probabilities for {len(ids)} ids")
    for place, one in enumerate(said[1:], 1):
        if not is_number(one) or math.isnan(one) or one > LARGEST:
            raise DumpError(
                f"{server.place}: {str(one)[:40]!r} for id {ids[place]} at place {place} is no log-probability"
            )
    return torch.tensor([math.nan, *map(float, said[1:])], dtype=torch.float64)
