"""The endpoint as its clients see it: the `openai` package, and plain HTTP."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import httpx2
import openai
import pytest
import torch
from served_models import CONTEXT, open_agent_policy, serving
from tiny_models import plain_logprobs, plain_model

from lockstep.core.batch import Batch
from lockstep.data.messages import render_prompt
from lockstep.inference.serve import ServedPolicy
from lockstep.rollouts.turns import Turn
from lockstep.serve.server import PolicyServer

QUESTION = [{"role": "user", "content": "the cat sat"}]
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {"name": "add", "parameters": {"type": "object", "properties": {}}},
    }
]
EXACT = {"return_token_ids": True}


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedPolicy]:
    with open_agent_policy(tmp_path_factory.mktemp("served") / "agent") as opened:
        yield opened


@pytest.fixture
def turns() -> list[Turn]:
    return []


@pytest.fixture
def server(policy: ServedPolicy, turns: list[Turn]) -> Iterator[PolicyServer]:
    with serving(policy, turns.append) as opened:
        yield opened


@pytest.fixture
def client(server: PolicyServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=server.url,
        api_key=server.key,
        max_retries=0,
        default_headers={"X-Session-ID": "agent"},
    ) as opened:
        yield opened


def post(server: PolicyServer, path: str, body: Any, **headers: str) -> httpx2.Response:
    root = server.url.removesuffix("/v1")
    given = {"Authorization": f"Bearer {server.key}", **headers}
    return httpx2.post(f"{root}{path}", json=body, headers=given, timeout=60)


def chat(server: PolicyServer, **fields: Any) -> dict[str, Any]:
    body = {"messages": QUESTION, "max_tokens": 8, **EXACT, **fields}
    answer = post(server, "/v1/chat/completions", body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_models_has_name_and_context(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert model.id == "policy"
    assert model.model_dump()["max_model_len"] == CONTEXT


def test_prompt_tokens_are_what_template_writes_and_tokens_are_text(
    server: PolicyServer, policy: ServedPolicy, turns: list[Turn]
) -> None:
    answer = chat(server, logprobs=True, top_logprobs=0)
    tokenizer = policy.source.tokenizer
    text = render_prompt(QUESTION, tokenizer)
    assert tokenizer.decode(answer["prompt_token_ids"]) == text
    (choice,) = answer["choices"]
    drawn = choice["token_ids"]
    assert policy.source.decode(drawn) == choice["message"]["content"]
    entries = choice["logprobs"]["content"]
    assert b"".join(bytes(entry["bytes"]) for entry in entries).decode() == "".join(
        entry["token"] for entry in entries
    )
    assert len(entries) == len(drawn) == answer["usage"]["completion_tokens"] == 8
    assert choice["finish_reason"] == "length"
    assert choice["weight_versions"] == [{"version": 0, "start": 0, "end": 8}]
    (turn,) = turns
    assert turn.prompt_token_ids == tuple(answer["prompt_token_ids"])
    assert turn.token_ids == tuple(drawn)
    assert turn.logprobs == tuple(entry["logprob"] for entry in entries)
    assert turn.response == answer
    assert turn.request["messages"] == QUESTION


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_equal_float64_reference_at_temperature(
    server: PolicyServer, policy: ServedPolicy, temperature: float
) -> None:
    answer = chat(server, logprobs=True, temperature=temperature, max_tokens=24)
    choice = answer["choices"][0]
    tokens = torch.tensor(answer["prompt_token_ids"] + choice["token_ids"])
    mask = torch.arange(len(tokens)) >= len(answer["prompt_token_ids"])
    model = plain_model(policy.source.folder)  # type: ignore[arg-type]
    with torch.no_grad():
        logits = model(input_ids=tokens[None]).logits[0] / temperature
    expected = logits.log_softmax(-1)[torch.arange(len(tokens) - 1), tokens[1:]][mask[1:]]
    shown = [entry["logprob"] for entry in choice["logprobs"]["content"]]
    torch.testing.assert_close(
        torch.tensor(shown, dtype=torch.float64), expected, rtol=0, atol=2e-5
    )
    if temperature == 1.0:
        batch = Batch(tokens, torch.tensor([len(tokens)]), {"mask": mask})
        with torch.no_grad():
            assert torch.allclose(plain_logprobs(model, batch)[mask], expected)


def test_completion_and_generate_draw_what_chat_draws(server: PolicyServer) -> None:
    said = chat(server, seed=3)
    ids = said["prompt_token_ids"]
    body = {"prompt": ids, "max_tokens": 8, "seed": 3, "logprobs": 0, **EXACT}
    completed = post(server, "/v1/completions", body).json()["choices"][0]
    sampling = {"max_tokens": 8, "seed": 3, "logprobs": 1, "skip_special_tokens": False}
    generated = post(
        server, "/inference/v1/generate", {"token_ids": ids, "sampling_params": sampling}
    ).json()["choices"][0]
    drawn = said["choices"][0]["token_ids"]
    assert completed["token_ids"] == generated["token_ids"] == drawn
    assert completed["prompt_token_ids"] == ids
    assert [entry["token_id"] for entry in generated["logprobs"]["content"]] == drawn
    assert completed["logprobs"]["token_logprobs"] == [
        entry["logprob"] for entry in generated["logprobs"]["content"]
    ]
    assert all(math.isfinite(score) for score in completed["logprobs"]["token_logprobs"])


def test_seed_gives_same_response_alone_and_beside_others(server: PolicyServer) -> None:
    alone = chat(server, seed=5, max_tokens=40)["choices"][0]
    several = chat(server, seed=5, n=7, max_tokens=40, logprobs=True)["choices"]
    assert several[0]["token_ids"] == alone["token_ids"]
    assert len({tuple(choice["token_ids"]) for choice in several}) == 7
    assert [choice["index"] for choice in several] == list(range(7))
    other = chat(server, seed=6, max_tokens=40)["choices"][0]
    assert other["token_ids"] != alone["token_ids"]


def test_requests_of_session_draw_anew_and_other_server_repeats_them(
    server: PolicyServer, policy: ServedPolicy
) -> None:
    def draw(one: PolicyServer, session: str) -> list[int]:
        headers = {"X-Session-ID": session}
        body = {"messages": QUESTION, "max_tokens": 8, **EXACT}
        answer = post(one, "/v1/chat/completions", body, **headers)
        return answer.json()["choices"][0]["token_ids"]

    first = [draw(server, "a"), draw(server, "a"), draw(server, "b")]
    assert first[0] not in first[1:]
    with serving(policy) as again:
        assert [draw(again, "a"), draw(again, "a"), draw(again, "b")] == first


def test_stop_string_ends_text_before_it_and_keeps_its_token(
    server: PolicyServer, policy: ServedPolicy
) -> None:
    whole = chat(server, seed=1, max_tokens=40)["choices"][0]
    stop = policy.source.decode(whole["token_ids"][5:7])
    answer = chat(server, seed=1, max_tokens=40, stop=[stop])["choices"][0]
    content = answer["message"]["content"]
    assert answer["finish_reason"] == "stop"
    assert stop not in content
    assert policy.source.decode(answer["token_ids"]).startswith(content + stop)
    assert whole["token_ids"][: len(answer["token_ids"])] == answer["token_ids"]


def test_stream_says_what_whole_answer_says(server: PolicyServer, client: openai.OpenAI) -> None:
    whole = chat(server, seed=2, logprobs=True)
    chunks = [
        chunk.model_dump()
        for chunk in client.chat.completions.create(
            model="policy",
            messages=QUESTION,  # type: ignore[arg-type]
            max_tokens=8,
            seed=2,
            logprobs=True,
            stream=True,
            stream_options={"include_usage": True},
            extra_body=EXACT,
        )
    ]
    assert chunks[0].get("prompt_token_ids") == whole["prompt_token_ids"]
    assert not any("prompt_token_ids" in chunk for chunk in chunks[1:])
    deltas = [choice for chunk in chunks for choice in chunk["choices"]]
    said = whole["choices"][0]
    text = "".join(delta["delta"].get("content") or "" for delta in deltas)
    assert text == said["message"]["content"]
    ids = [token for delta in deltas for token in delta.get("token_ids") or []]
    assert ids == said["token_ids"]
    assert deltas[-1]["finish_reason"] == said["finish_reason"]
    assert chunks[-1]["usage"]["completion_tokens"] == 8


def test_agent_with_tools_holds_eight_turns_without_retokenizing(
    client: openai.OpenAI, policy: ServedPolicy, turns: list[Turn]
) -> None:
    messages: list[Any] = list(QUESTION)
    said: list[Any] = list(QUESTION)  # as the server said it
    source = policy.source
    called = retokenized = 0
    for turn in range(8):
        answer = client.chat.completions.create(
            model="policy", messages=messages, tools=TOOLS, max_tokens=6, temperature=9.0
        )
        text = render_prompt(said, source.tokenizer, {"tools": TOOLS})
        message = answer.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        own = turns[-1].response["choices"][0]["message"]
        said.append({**own, "content": own["content"] or ""})
        follows: list[Any] = []
        for call in message.tool_calls or []:
            called += 1
            assert call.type == "function"
            follows.append({"role": "tool", "tool_call_id": call.id, "content": "3"})
        follows = follows or [{"role": "user", "content": f"and the mat {turn}"}]
        messages += follows
        said += follows
        encoded = tuple(source.token_ids(text))
        retokenized += encoded != turns[-1].prompt_token_ids
    assert called
    assert len(turns) == 8
    for earlier, later in pairwise(turns):
        whole = earlier.prompt_token_ids + earlier.token_ids
        assert later.prompt_token_ids[: len(whole)] == whole
    assert retokenized  # an encoding of the same text differs
