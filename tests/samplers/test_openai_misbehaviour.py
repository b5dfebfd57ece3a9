"""The client against servers of other kinds, and against one that does on purpose what servers do on bad days."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from openai_server import OpenAIServer, Said, listening

from lockstep.config import OpenAI
from lockstep.core.types import Reply, Request, SamplingParams
from lockstep.inference.generate import generate
from lockstep.inference.generate_recipe import generate_recipe
from lockstep.models.tokenizer import load_tokenizer
from lockstep.samplers.openai.client import OpenAIClient, ServerError

KEY_NAME, KEY = "LOCKSTEP_TEST_KEY", "sesame-9f1c"
EOS = 1
SAMPLING = SamplingParams(4, stop_token_ids=(EOS,))


def completed(**fields: Any) -> Said:
    """An answer as servers give it to four tokens that were asked for."""
    choice = {"index": 0, "text": "so", "finish_reason": "length"} | fields
    usage = {"prompt_tokens": 2, "completion_tokens": choice.pop("tokens", 4)}
    return 200, {"id": "x", "object": "text_completion", "choices": [choice], "usage": usage}


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
        said = {"base_url": self.url, "model": "m", "api_key_env": KEY_NAME, "max_retries": 1, **options}
        return OpenAIClient(OpenAI.model_validate(said), timeout_s, vocabulary=64, note=self.told.append)

    def reply(self, **options: Any) -> Reply:
        """To one request."""
        [(place, reply)] = self.client(**options).replies([Request((5, 6), 7)], SAMPLING)
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
def test_a_server_that_is_busy_is_asked_again(script: Script, status: int) -> None:
    script.says = first((status, {"error": {"message": "busy"}}), completed())
    assert script.reply() == Reply("so", 4, "length", None)
    assert len(script.bodies) == 2
    assert script.bodies[0] == script.bodies[1]
    assert [line.split("; ")[-1] for line in script.told] == ["asking again in 0.5 s (1 of 1 times)"]


@pytest.mark.parametrize("status", [400, 422])
def test_a_refused_request_is_not_sent_again(script: Script, status: int) -> None:
    script.says = first((status, {"error": {"message": "no"}}), completed())
    with pytest.raises(ServerError, match=f"refuses a request with {status}"):
        script.reply()
    assert len(script.bodies) == 1
    assert not script.told


def test_prompts_do_not_follow_a_server_elsewhere(script: Script) -> None:
    other = Script()
    with listening(other):
        script.says = lambda n: (307, f"{other.url}/completions")
        with pytest.raises(ServerError, match=rf"it sends requests on to {other.url}/completions; name that address"):
            script.reply()
    assert not other.bodies
    assert len(script.bodies) == 1


@pytest.mark.parametrize(
    ("answer", "bad"),
    [
        (completed(token_ids=[2, 3, 4, 5]), False),
        (completed(token_ids=[2, EOS], finish_reason="stop"), False),
        (completed(token_ids=[2, 3, 4, 64]), True),
        (completed(token_ids=[2, 3, 4, -1]), True),
        (completed(token_ids=[2, 3], finish_reason="stop"), True),
        (completed(token_ids=[], finish_reason="stop"), True),
        (completed(token_ids=[2, 3]), True),
        (completed(token_ids=[2, 3, 4, 5, 6]), True),
        (completed(token_ids=[2, EOS], finish_reason="abort"), True),
        (completed(token_ids=[2, EOS], finish_reason=None), True),
        (completed(tokens=4), False),
        (completed(tokens=3), True),
        (completed(tokens=3, finish_reason="stop"), False),
        (completed(tokens=3, finish_reason="stop", stop_reason=EOS), False),
        (completed(tokens=3, finish_reason="stop", stop_reason=9), True),
        (completed(tokens=3, finish_reason="stop", matched_stop=9), True),
        (completed(tokens=3, finish_reason="stop", matched_stop="NaN happened"), True),
    ],
)
def test_a_bad_end_is_counted_with_ids_and_without(script: Script, answer: Said, bad: bool) -> None:
    script.says = first(answer)
    notes: list[str] = []
    options = OpenAI(base_url=script.url, model="m", api_key_env=KEY_NAME)
    client = OpenAIClient(options, 20, vocabulary=64, note=notes.append)
    list(client.replies([Request((5, 6), 7)], SAMPLING))
    assert (client.answers, client.bad_ends) == (1, bad)
    assert len(notes) == bad


def test_no_more_is_under_way_than_allowed_and_no_less(script: Script) -> None:
    script.says = lambda n: time.sleep(0.05) or completed()
    places = [place for place, _ in script.client(max_concurrency=3).replies([Request((5,), 0)] * 12, SAMPLING)]
    assert sorted(places) == list(range(12))
    assert script.at_once == 3


def test_one_failure_ends_it_at_once(script: Script) -> None:
    late: list[bool] = []
    script.says = lambda n: (late.append(script.held.wait(60)) if n else None, (400, {"error": {"message": "no"}}))[1]
    with pytest.raises(ServerError, match=r"refuses a request with 400 \(no\)$"):
        list(script.client(timeout_s=60).replies([Request((5,), 0)] * 8, SAMPLING))
    assert not late


def test_the_key_is_sent_and_never_said(script: Script, caplog: pytest.LogCaptureFixture) -> None:
    script.says = first((400, {"error": {"message": f"what is Bearer {KEY}?"}}))
    with caplog.at_level("INFO"), pytest.raises(ServerError, match=r"\(what is Bearer \[key\]\?\)$"):
        script.reply()
    assert script.keys == [f"Bearer {KEY}"] * 2
    assert KEY not in caplog.text


def test_each_kind_of_server_is_asked_in_its_words(script: Script) -> None:
    ours = {"prompt": [5, 6], "max_tokens": 4, "temperature": 1.0, "top_p": 1.0, "seed": 7, "model": "m"}
    plain = {"repetition_penalty": 1.0, "min_p": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    known = ours | plain | {"stop_token_ids": [EOS]}
    for owner, expected in (
        ("vllm", known | {"top_k": 0, "return_token_ids": True, "ignore_eos": True}),
        ("sglang", known | {"top_k": -1}),
        ("tensorrt_llm", known | {"top_k": 0}),
    ):
        script.owner = owner
        script.reply()
        assert script.bodies.pop() == expected
    script.owner = "somebody"
    assert script.told == []
    script.reply()
    assert "calls itself 'somebody', which is not known here; " in script.told[0]
    assert script.told[0].endswith(" stops where it will")
    assert script.bodies.pop() == ours


@pytest.mark.parametrize("owner", ["tensorrt_llm", "somebody"])
def test_what_a_server_lacks_is_refused_by_name(script: Script, owner: str) -> None:
    script.owner = owner
    notes: list[str] = []
    client = OpenAIClient(OpenAI(base_url=script.url, model="m"), 20, note=notes.append)
    name = "TensorRT-LLM" if owner == "tensorrt_llm" else "a server called 'somebody'"
    with pytest.raises(ValueError, match=f"^{name} gives no log-probabilities"):
        client.replies([Request((5,), 0)], SAMPLING, logprobs=True)
    if owner == "somebody":
        with pytest.raises(ValueError, match=f"^{name} is not known to understand top_k; leave it at 0$"):
            client.require(SamplingParams(4, top_k=3))


def test_generate_asks_a_server_block_by_block(script: Script, assets: Path, in_tmp: Path) -> None:
    """Prompts that take longer the earlier they were asked come back in order, each with its own reply."""
    rows = [{"question": f"Tell {n}", "n": n} for n in range(5)]
    (in_tmp / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    script.says = lambda n: (time.sleep(0.05 * (3 - n % 4)), completed(text=str(script.bodies[n]["seed"])))[1]
    server = f"sampler={{backend: openai, openai: {{base_url: '{script.url}', model: m, api_key_env: {KEY_NAME}}}}}"
    few = ["sampling.max_tokens=4", "data.max_prompt_tokens=64", "num_generations=2", "run.save_every=2"]
    model = f"{assets}/models/stories260K/hf"
    folder = generate(generate_recipe(model, "rows.jsonl", [server, *few], folder="out"))
    records = [json.loads(line) for line in (folder / "generations.jsonl").read_text().splitlines()]
    assert [record["metadata"]["n"] for record in records] == [0, 1, 2, 3, 4]
    assert len(script.bodies) == 10
    prompt_of = {str(body["seed"]): load_tokenizer(model).decode(body["prompt"][1:]) for body in script.bodies}
    for record in records:
        assert [prompt_of[text] for text in record["responses"]] == [record["prompt"]] * 2
        assert record["finish_reasons"] == ["length"] * 2
        assert record["num_tokens"] == [4, 4]
