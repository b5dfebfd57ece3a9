"""Servers on this machine that speak like vLLM, SGLang and OpenAI's first API, and some that are hostile."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from raw_server import raw, sending
from scoring_server import Reply, serving

from lockstep_doctor.dumps import DumpError, Server, score_by_url

IDS = [[5, 6, 7], [8, 9]]
KEY = "very-secret"


def logprob(place: int) -> float | None:
    return -0.5 * place if place else None


def vllm(path: str, body: dict[str, Any]) -> Any:
    if path == "/v1/models":
        return {"data": [{"id": "tiny"}]}
    if path != "/v1/completions" or body["model"] != "tiny":
        return 404
    said = [
        {str(token): {"logprob": logprob(place), "rank": 3}, "0": {"logprob": -0.1, "rank": 1}} if place else None
        for place, token in enumerate(body["prompt"])
    ]
    return {"choices": [{"text": "x", "prompt_logprobs": said}]}


def sglang(path: str, body: dict[str, Any]) -> Any:
    if path != "/generate":
        return 404
    said = [[logprob(place), token, None] for place, token in enumerate(body["input_ids"])]
    return {"text": "x", "meta_info": {"input_token_logprobs": said}}


def echo(path: str, body: dict[str, Any]) -> Any:
    if path == "/v1/models":
        return {"data": [{"id": "tiny"}]}
    if path != "/v1/completions" or not body.get("echo"):
        return {"choices": [{"text": "x", "logprobs": None}]} if path == "/v1/completions" else 404
    said = [logprob(place) for place in range(len(body["prompt"]) + 1)]
    return {"choices": [{"text": "x", "logprobs": {"token_logprobs": said}}]}


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")


@pytest.mark.parametrize("reply", [vllm, sglang, echo])
@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/"])
def test_the_column_of_a_server(reply: Reply, path: str) -> None:
    with serving(reply) as url:
        dump = score_by_url(url + path, [torch.tensor(IDS[0]), IDS[1]])
    columns = dump.columns
    assert (dump.train, dump.infer) == (None, url)
    assert columns.ids is not None
    assert columns.ids.tolist() == [5, 6, 7, 8, 9]
    assert columns.offsets.tolist() == [0, 3, 5]
    assert columns.mask.tolist() == [False, True, True, False, True]
    assert columns.infer[columns.mask].tolist() == [-0.5, -1.0, -0.5]
    assert bool(columns.train.isnan().all())


def test_the_key_goes_to_the_server_alone() -> None:
    seen: list[Any] = []
    with serving(lambda path, body: 302, seen) as url:
        server = Server(url, "tiny", KEY)
        with pytest.raises(DumpError, match="replies 302") as raised:
            score_by_url(server, IDS)
    assert {key for _, key in seen} == {f"Bearer {KEY}"}
    assert not [path for path, _ in seen if path == "/elsewhere"]
    assert KEY not in str(raised.value) + repr(server)


def test_what_is_secret_in_an_address_is_not_said() -> None:
    with pytest.raises(DumpError) as raised:
        score_by_url(Server(f"http://me:{KEY}@127.0.0.1:9/path?token={KEY}", "tiny"), IDS)
    assert KEY not in str(raised.value)
    assert raised.value.__cause__ is None


def entries(*said: Any) -> Reply:
    return lambda path, body: {"choices": [{"prompt_logprobs": list(said)}]} if path == "/v1/completions" else 404


def one(token: int, value: Any) -> dict[str, Any]:
    return {str(token): {"logprob": value}}


@pytest.mark.parametrize(
    ("reply", "sentence"),
    [
        (
            lambda path, body: 500,
            "as vLLM: http://127.*/v1/completions: replies 500; as SGLang: .*/generate: replies 500",
        ),
        (lambda path, body: b"<html>", r"/v1/completions: no JSON comes \(JSONDecodeError\)"),
        (lambda path, body: b"[" * 10**6, r"/v1/completions: no JSON comes \(RecursionError\)"),
        (lambda path, body: b"\x80abc", r"/v1/completions: no JSON comes \(UnicodeDecodeError\)"),
        (lambda path, body: {"choices": []}, "no prompt_logprobs in the reply"),
        (lambda path, body: {"choices": "x"}, "no prompt_logprobs in the reply"),
        (entries(None, one(6, -1)), "replies with 2 log-probabilities for 3 ids"),
        (entries(None, one(6, -1), one(8, -1)), "'None' for id 7 at place 2 is no log-probability"),
        (entries(None, one(6, -1), one(7, 0.5)), r"'0\.5' for id 7 at place 2 is no log-probability"),
        (entries(None, one(6, True), one(7, -1)), "'True' for id 6 at place 1 is no log-probability"),
        (entries(None, one(6, -(10**400)), one(7, -1)), "for id 6 at place 1 is no log-probability"),
        (entries(None, one(6, float("nan")), one(7, -1)), "'nan' for id 6 at place 1 is no log-probability"),
        (
            lambda path, body: {"meta_info": {"input_token_logprobs": [[None, 5], [-1, 6], [-1, 8]]}},
            "as SGLang: input_token_logprobs are of other ids",
        ),
    ],
)
def test_a_reply_that_is_none_gets_one_sentence(reply: Reply, sentence: str) -> None:
    with serving(reply) as url, pytest.raises(DumpError, match=sentence) as raised:
        score_by_url(Server(url, "tiny", timeout_s=20), IDS)
    assert "\n" not in str(raised.value)


def test_another_protocol_gets_one_sentence() -> None:
    with sending(raw(b"SSH-2.0-x\r\n")) as url, pytest.raises(DumpError, match=r"no JSON comes \(BadStatusLine\)"):
        score_by_url(Server(url, "tiny", timeout_s=20), IDS)


def test_a_reply_that_never_ends_is_given_up() -> None:
    with (
        serving(lambda path, body: [b" "] * 60) as url,
        pytest.raises(DumpError, match=r"has not replied in 0\.5 s"),
    ):
        score_by_url(Server(url, "tiny", timeout_s=0.5), IDS)


@pytest.mark.parametrize(
    ("url", "sequences", "sentence"),
    [
        ("file:///etc/passwd", IDS, r"is no address of a server; write http://HOST:PORT"),
        ("localhost:8000", IDS, r"is no address of a server"),
        ("http://127.0.0.1:9", [[5]], "two ids or more"),
        ("http://127.0.0.1:9", [], "two ids or more"),
        ("http://127.0.0.1:9", IDS, r"cannot be reached: .*refused$"),
    ],
)
def test_what_cannot_be_asked_gets_one_sentence(url: str, sequences: list[list[int]], sentence: str) -> None:
    with pytest.raises(DumpError, match=sentence):
        score_by_url(url, sequences)
