"""Proofs of responses, and the verbs of a trainer."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch
from served_models import open_agent_policy, serving

from lockstep.inference.serve import ServedPolicy
from lockstep.rollouts.turns import Turn
from lockstep.serve.server import PolicyServer

LONG = {"prompt": "the cat", "max_tokens": 300, "ignore_eos": True, "return_token_ids": True}
SHORT = {**LONG, "max_tokens": 12}


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedPolicy]:
    with open_agent_policy(tmp_path_factory.mktemp("served") / "agent") as opened:
        yield opened


@pytest.fixture
def server(policy: ServedPolicy) -> Iterator[PolicyServer]:
    with serving(policy) as opened:
        yield opened


def send(
    server: PolicyServer, path: str, body: Any = None, key: str | None = None
) -> httpx2.Response:
    root = server.url.removesuffix("/v1")
    headers = {"Authorization": f"Bearer {key or server.key}"}
    if body is None:
        return httpx2.get(f"{root}{path}", headers=headers, timeout=60)
    return httpx2.post(f"{root}{path}", json=body, headers=headers, timeout=60)


class Background(threading.Thread):
    """A request that another thread sends."""

    def __init__(self, server: PolicyServer, body: Any) -> None:
        super().__init__(daemon=True)
        self.server = server
        self.body = body
        self.answer = httpx2.Response(0)
        self.start()

    def run(self) -> None:
        self.answer = send(self.server, "/v1/completions", self.body)

    def wait(self) -> httpx2.Response:
        self.join(60)
        return self.answer


def wait_until_open(server: PolicyServer, count: int) -> None:
    while server.open_count != count:
        time.sleep(0.005)


@pytest.mark.parametrize(
    "draws",
    [
        {},
        {"temperature": 0.7, "n": 3},
        {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "presence_penalty": 0.5},
    ],
)
def test_learner_recomputes_every_logprob_bit_for_bit(
    server: PolicyServer, draws: dict[str, Any]
) -> None:
    others = [Background(server, LONG) for _ in range(3)]
    answer = send(server, "/v1/completions", {**SHORT, "logprobs": 0, **draws}).json()
    proof = send(server, "/prove", {"request_id": answer["id"]}).json()
    assert proof["mismatches"] == 0
    assert proof["tokens"] == answer["usage"]["completion_tokens"]
    assert [choice["logprobs"] for choice in proof["choices"]] == [
        choice["logprobs"]["token_logprobs"] for choice in answer["choices"]
    ]
    assert [other.wait().status_code for other in others] == [200] * 3


def test_weight_that_moved_is_seen_by_proof_and_by_checker(
    server: PolicyServer, policy: ServedPolicy
) -> None:
    answer = send(server, "/v1/completions", SHORT).json()
    baseline = send(server, "/weight_checker", {"action": "checksum"}).json()["checksums"]
    name, tensor = next(
        (name, tensor) for name, tensor in policy.learner.weights() if "norm" in name
    )
    true = tensor[0].clone()
    with torch.no_grad():
        tensor[0] = torch.nextafter(true, true + 1)
        try:
            proof = send(server, "/prove", {"request_id": answer["id"]}).json()
            compared = send(
                server, "/weight_checker", {"action": "compare", "baseline": baseline}
            ).json()
        finally:
            tensor[0] = true
    assert proof["mismatches"] > 0
    assert not compared["match"]
    assert [key.rsplit(":")[-1] for key in compared["mismatches"]] == [name]
    again = send(server, "/weight_checker", {"action": "compare", "baseline": baseline}).json()
    assert again == {"match": True, "mismatches": []}


def test_pause_waits_for_open_responses_and_holds_later_ones(server: PolicyServer) -> None:
    running = Background(server, LONG)
    wait_until_open(server, 1)
    assert send(server, "/pause?mode=wait", {}).json() == {"status": "paused"}
    assert running.wait().status_code == 200
    assert send(server, "/is_paused").json() == {"is_paused": True}
    held = Background(server, SHORT)
    wait_until_open(server, 1)
    assert send(server, "/resume", {}).json() == {"status": "resumed"}
    assert held.wait().status_code == 200


def test_kept_response_begins_anew_and_is_same_response(server: PolicyServer) -> None:
    body = {**LONG, "seed": 4}
    expected = send(server, "/v1/completions", body).json()["choices"][0]["token_ids"]
    running = Background(server, body)
    wait_until_open(server, 1)
    send(server, "/pause?mode=keep", {})
    assert not running.answer.status_code
    send(server, "/resume", {})
    assert running.wait().json()["choices"][0]["token_ids"] == expected


@pytest.mark.parametrize("path", ["/pause?mode=abort", "/abort_requests"])
def test_abort_ends_open_responses_with_sentence(server: PolicyServer, path: str) -> None:
    running = [Background(server, LONG) for _ in range(2)]
    wait_until_open(server, 2)
    answer = send(server, path, {}).json()
    assert answer in ({"status": "paused"}, {"status": "aborted", "aborted": 2})
    assert [one.wait().status_code for one in running] == [410, 410]
    assert "send the request again" in running[0].answer.json()["error"]["message"]
    send(server, "/resume", {})
    assert send(server, "/v1/completions", SHORT).status_code == 200


def test_weight_info_and_refused_reset(server: PolicyServer) -> None:
    assert send(server, "/weight_info").json() == {"weight_version": "0"}
    refused = send(server, "/weight_checker", {"action": "reset"})
    assert refused.status_code == 400
    assert "cannot be reset" in refused.json()["error"]["message"]


def test_later_weights_have_their_version_and_earlier_responses_cannot_be_proven(
    tmp_path: Path,
) -> None:
    turns: list[Turn] = []
    with open_agent_policy(tmp_path / "agent") as policy, serving(policy, turns.append) as server:
        first = send(server, "/v1/completions", {**SHORT, "seed": 1}).json()
        server.pause()
        policy.sampler.load_weights(
            [(name, 1.01 * tensor) for name, tensor in policy.learner.weights()], 7
        )
        server.resume()
        second = send(server, "/v1/completions", {**SHORT, "seed": 1}).json()
        assert [turn.weight_version for turn in turns] == [0, 7]
        assert first["choices"][0]["token_ids"] != second["choices"][0]["token_ids"]
        assert send(server, "/prove", {"request_id": second["id"]}).json()["mismatches"] == 0
        refused = send(server, "/prove", {"request_id": first["id"]})
        assert refused.status_code == 409
        assert "version 0" in refused.json()["error"]["message"]


def test_turn_that_cannot_be_recorded_is_not_sent_and_stops_server(policy: ServedPolicy) -> None:
    def fail(turn: Turn) -> None:
        raise OSError("No space left on device")

    with serving(policy, fail) as server:
        for _ in range(2):
            refused = send(server, "/v1/completions", SHORT)
            assert refused.status_code == 503
            assert "No space left on device" in refused.json()["error"]["message"]


def test_samplers_in_other_processes_answer_and_are_proven(
    tmp_path: Path, policy: ServedPolicy
) -> None:
    with serving(policy) as server:
        expected = send(server, "/v1/completions", {**SHORT, "seed": 2, "n": 3}).json()
    with (
        open_agent_policy(tmp_path / "agent", sampler={"replicas": 2}) as other,
        serving(other) as server,
    ):
        bodies = [{**SHORT, "seed": 2, "n": 3}, SHORT, {**SHORT, "max_tokens": 5}]
        running = [Background(server, body) for body in bodies]
        answers = [one.wait().json() for one in running]
        assert answers[0]["choices"] == expected["choices"]
        for answer in answers:
            proof = send(server, "/prove", {"request_id": answer["id"]}).json()
            assert proof["mismatches"] == 0
        checksums = send(server, "/weight_checker", {"action": "checksum"}).json()["checksums"]
        assert len(checksums) == len(list(other.learner.weights()))
