"""Hostile replies of servers: each is a response, or one sentence within its deadline."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_server import MODELS, Reply, http, raw, sending
from reply_cases import GETS, POSTS, SLOW_GETS, TOLD_LATER, completed
from strategies import VALUES, corrupted, spoiled

from lockstep.config import OpenAI
from lockstep.core.errors import LockstepError
from lockstep.core.types import SamplingParams
from lockstep.core.types import ServerReply as Response
from lockstep.samplers.openai.client import OpenAIClient
from lockstep.system.printable import make_printable

SAMPLING = SamplingParams(4)
TALK = [{"role": "user", "content": "Is it?"}]
DEADLINE_S = 10.0


def ask(
    post: Reply, get: Reply = MODELS, timeout_s: float = 5.0
) -> tuple[Response | str, list[str]]:
    """What comes of one request: the response, or the sentence; and what was noted."""
    notes: list[str] = []
    with sending(post, get) as url:
        options = OpenAI(base_url=url, model="m", max_retries=0, api_key_env="LOCKSTEP_TEST_NO_KEY")
        try:
            client = OpenAIClient(options, timeout_s, notes.append)
            [(_, reply)] = client.chat([TALK], SAMPLING, [7])
        except LockstepError as error:
            return make_printable(str(error)), notes
    return reply, notes


def require_sound(reply: Response) -> None:
    """A response is of the tokens that were asked for, and can be written."""
    assert 0 <= reply.num_tokens <= SAMPLING.max_tokens + 1
    json.dumps([reply.text, reply.finish_reason], ensure_ascii=False).encode()


@pytest.mark.parametrize("name", sorted(POSTS.keys() - TOLD_LATER))
def test_hostile_server_reply_is_valid_response_or_one_line_error(name: str) -> None:
    post, says = POSTS[name]
    answer, _ = ask(post)
    if not isinstance(answer, str):
        assert not says, answer
        require_sound(answer)
        return
    assert says in answer
    assert "\n" not in answer
    assert len(answer) < 1_000


@pytest.mark.parametrize("name", sorted(GETS.keys() - SLOW_GETS))
def test_hostile_model_list_gives_stated_error(name: str) -> None:
    get, says = GETS[name]
    answer, _ = ask(http(completed()), get)
    assert says in (answer if isinstance(answer, str) else "")
    assert len(str(answer)) < 1_000


@pytest.mark.parametrize("name", sorted(TOLD_LATER | SLOW_GETS))
def test_slow_server_reply_ends_with_stated_error(name: str) -> None:
    post, says = POSTS.get(name, (http(completed()), ""))
    get, later = GETS.get(name, (MODELS, ""))
    answer, _ = ask(post, get, timeout_s=0.6)
    assert (says or later) in str(answer)


def test_retry_after_429_gives_one_note() -> None:
    notes: list[str] = []
    with sending(http({}, "429 Busy", {"Retry-After": "1"})) as url:
        client = OpenAIClient(
            OpenAI(base_url=url, model="m", max_retries=1), 5.0, note=notes.append
        )
        with pytest.raises(LockstepError, match="returns 429 after 2 attempts"):
            list(client.chat([TALK], SAMPLING, [7]))
    assert len(notes) == 1


def changed_answers() -> st.SearchStrategy[Any]:
    """Answers to a request, nearly right."""
    return st.one_of(spoiled(completed()), VALUES)


def damaged_bytes() -> st.SearchStrategy[bytes]:
    """An answer as it goes over the wire, damaged."""
    body = json.dumps(completed()).encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(
        body
    )
    chunks = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (
        len(body),
        body,
    )
    return corrupted(st.sampled_from([head + body, chunks]))


def check(post: Reply) -> None:
    started = time.monotonic()
    answer, _ = ask(post, timeout_s=1.0)
    assert time.monotonic() - started < DEADLINE_S
    if not isinstance(answer, str):
        require_sound(answer)


@settings(max_examples=25)
@given(changed_answers())
def test_fuzzed_json_reply_is_valid_response_or_error(body: Any) -> None:
    check(http(json.dumps(body).encode()))


@settings(max_examples=25)
@given(damaged_bytes())
def test_corrupted_http_reply_is_valid_response_or_error(content: bytes) -> None:
    check(raw(content))
