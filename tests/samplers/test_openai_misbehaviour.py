"""The client against servers of other kinds, and against one that does on purpose what servers do
on bad days.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from openai_server import OpenAIServer, Said, listening

from lockstep.config import OpenAI
from lockstep.core.types import SamplingParams, ServerReply
from lockstep.samplers.openai.client import OpenAIClient, ServerError

KEY_NAME, KEY = "LOCKSTEP_TEST_KEY", "sesame-9f1c"
EOS = 1
SAMPLING = SamplingParams(4, stop_token_ids=(EOS,))
TALK = [{"role": "user", "content": "Is it?"}]


def completed(**fields: Any) -> Said:
    """An answer as servers give it to four tokens that were asked for."""
    message = {"role": "assistant", "content": "so"}
    choice = {"index": 0, "message": message, "finish_reason": "length"} | fields
    usage = {"prompt_tokens": 2, "completion_tokens": choice.pop("tokens", 4)}
    return 200, {"id": "x", "object": "chat.completion", "choices": [choice], "usage": usage}


@dataclass
class Script(OpenAIServer):
    """A server that answers request by request.

    Attributes:
        says: Its answer to the n-th request for a response, from 0.
        at_once: The most requests that it had at one time.
        held: What an answer can wait for; it is set in the end.
        told: What its clients told.
    """

    says: Callable[[int], Said] = lambda n: completed()
    at_once: int = 0
    held: threading.Event = field(default_factory=threading.Event)
    told: list[str] = field(default_factory=list)
    _now: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, body: dict[str, Any]) -> Said:
        with self._lock:
            number = len(self.bodies)
            self.bodies.append(body)
            self._now += 1
            self.at_once = max(self.at_once, self._now)
        try:
            return self.says(number)
        finally:
            with self._lock:
                self._now -= 1

    def client(self, timeout_s: float = 20.0, **options: Any) -> OpenAIClient:
        said = {
            "base_url": self.url,
            "model": "m",
            "api_key_env": KEY_NAME,
            "max_retries": 1,
            **options,
        }
        return OpenAIClient(OpenAI.model_validate(said), timeout_s, note=self.told.append)

    def reply(self, **options: Any) -> ServerReply:
        """To one request."""
        [(place, reply)] = self.client(**options).chat([TALK], SAMPLING, [7])
        assert place == 0
        return reply


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    monkeypatch.setenv(KEY_NAME, KEY)
    script = Script()
    with listening(script):
        yield script
        script.held.set()


def first(*said: Said) -> Callable[[int], Said]:
    """These once each, and the last for ever."""
    return lambda n: said[min(n, len(said) - 1)]


@pytest.mark.parametrize("status", [429, 500, 503])
def test_request_to_busy_server_is_retried_unchanged(script: Script, status: int) -> None:
    script.says = first((status, {"error": {"message": "busy"}}), completed())
    assert script.reply() == ServerReply("so", 4, "length")
    assert len(script.bodies) == 2
    assert script.bodies[0] == script.bodies[1]
    assert [line.split("; ")[-1] for line in script.told] == [
        "asking again in 0.5 s (1 of 1 times)"
    ]


@pytest.mark.parametrize("status", [400, 422])
def test_a_refused_request_is_not_sent_again(script: Script, status: int) -> None:
    script.says = first((status, {"error": {"message": "no"}}), completed())
    with pytest.raises(ServerError, match=f"returns {status} after 1 attempts"):
        script.reply()
    assert len(script.bodies) == 1
    assert not script.told


def test_redirect_is_refused_and_prompt_is_not_sent_to_new_address(script: Script) -> None:
    other = Script()
    with listening(other):
        script.says = lambda n: (307, f"{other.url}/chat/completions")
        with pytest.raises(
            ServerError,
            match=rf"it redirects requests to {other.url}/chat/completions; use that address",
        ):
            script.reply()
    assert not other.bodies
    assert len(script.bodies) == 1


def test_concurrent_requests_reach_but_never_exceed_max_concurrency(script: Script) -> None:
    script.says = lambda n: time.sleep(0.05) or completed()
    places = [
        place for place, _ in script.client(max_concurrency=3).chat([TALK] * 12, SAMPLING, [0] * 12)
    ]
    assert sorted(places) == list(range(12))
    assert script.at_once == 3


def test_failed_request_ends_chat_without_waiting_for_the_others(script: Script) -> None:
    late: list[bool] = []
    script.says = lambda n: (
        late.append(script.held.wait(60)) if n else None,
        (400, {"error": {"message": "no"}}),
    )[1]
    with pytest.raises(ServerError, match=r"returns 400 after 1 attempts \(no\)"):
        list(script.client(timeout_s=60).chat([TALK] * 8, SAMPLING, [0] * 8))
    assert not late


def test_api_key_is_sent_but_redacted_from_errors_and_logs(
    script: Script, caplog: pytest.LogCaptureFixture
) -> None:
    script.says = first((400, {"error": {"message": f"what is Bearer {KEY}?"}}))
    with caplog.at_level("INFO"), pytest.raises(ServerError, match=r"\(what is Bearer \[key\]\?\)"):
        script.reply()
    assert script.keys == [f"Bearer {KEY}"] * 2
    assert KEY not in caplog.text


def test_request_fields_match_each_server_kind(script: Script) -> None:
    ours = {
        "messages": TALK,
        "max_completion_tokens": 4,
        "temperature": 1.0,
        "top_p": 1.0,
        "seed": 7,
        "model": "m",
    }
    plain = {
        "repetition_penalty": 1.0,
        "min_p": 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
    }
    known = ours | plain | {"stop_token_ids": [EOS]}
    for owner, expected in (
        ("vllm", known | {"top_k": 0}),
        ("sglang", known | {"top_k": -1}),
        ("tensorrt_llm", known | {"top_k": 0}),
    ):
        script.owner = owner
        script.reply()
        assert script.bodies.pop() == expected
    script.owner = "somebody"
    assert script.told == []
    script.reply()
    assert "calls itself 'somebody', which is unknown; " in script.told[0]
    assert script.told[0].endswith(" uses its own stop tokens")
    assert script.bodies.pop() == ours


def test_sampling_option_unsupported_by_server_is_refused_by_name(script: Script) -> None:
    script.owner = "somebody"
    with pytest.raises(
        ValueError,
        match=r"^a server called 'somebody' is not known to support top_k; leave it at",
    ):
        script.client().require_supported(SamplingParams(4, top_k=3))
