"""Hostile clients of the endpoint: each gets one sentence, and harms nobody else."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from endpoint_cases import ASK, BODIES, CHAT, TELL, TEXT
from served_models import open_agent_policy, serving

from lockstep.inference.serve import ServedPolicy
from lockstep.serve.server import PolicyServer

LONG = {**TELL, "max_tokens": 400, "ignore_eos": True}


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedPolicy]:
    with open_agent_policy(tmp_path_factory.mktemp("served") / "agent") as opened:
        yield opened


@pytest.fixture(scope="module")
def server(policy: ServedPolicy) -> Iterator[PolicyServer]:
    with serving(policy, max_body_mib=0.5, max_requests=8) as opened:
        yield opened


def send(
    server: PolicyServer, path: str, body: Any, key: str | None = None, **headers: str
) -> httpx2.Response:
    given = {"Authorization": f"Bearer {server.key if key is None else key}", **headers}
    content: Any = {"content": body} if isinstance(body, bytes) else {"json": body}
    root = server.url.removesuffix("/v1")
    return httpx2.post(f"{root}{path}", headers=given, timeout=60, **content)


def require_served(server: PolicyServer) -> None:
    answer = send(server, CHAT, ASK)
    assert answer.status_code == 200, answer.text


def open_socket(server: PolicyServer) -> socket.socket:
    host, port = server.url.removeprefix("http://").removesuffix("/v1").split(":")
    return socket.create_connection((host, int(port)))


def begin(server: PolicyServer, length: int) -> bytes:
    return (
        f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {server.key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    ).encode()


@pytest.mark.parametrize("name", BODIES)
def test_hostile_body_gets_stated_sentence(server: PolicyServer, name: str) -> None:
    path, body, status, says = BODIES[name]
    answer = send(server, path, body)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert says in error["message"]
    assert len(error["message"]) < 1_000
    require_served(server)


@pytest.mark.parametrize("key", ["", "Bearer wrong", "Bearer \xe9", "Basic " + "a" * 5_000])
def test_wrong_key_gets_401_everywhere(server: PolicyServer, key: str) -> None:
    root = server.url.removesuffix("/v1")
    headers = [(b"Authorization", key.encode("latin-1"))]
    for path in (CHAT, TEXT, "/prove", "/pause", "/weight_checker"):
        answer = httpx2.post(f"{root}{path}", headers=headers, content=b"{" * 100)
        assert answer.status_code == 401
    require_served(server)


def test_session_key_reaches_only_its_session_and_expires(server: PolicyServer) -> None:
    mine = server.open_session("mine")
    other = server.open_session("other")
    own = send(server, TEXT, TELL, key=mine)
    request_id = {"request_id": own.json()["id"]}
    assert send(server, "/prove", request_id, key=mine).json()["mismatches"] == 0
    assert send(server, "/prove", request_id, key=other).status_code == 404
    assert send(server, "/prove", request_id).json()["mismatches"] == 0
    taken = send(server, TEXT, TELL, key=other, **{"X-Session-ID": "mine"})
    assert taken.status_code == 403
    for path in ("/pause", "/abort_requests", "/weight_checker", "/resume"):
        assert send(server, path, {}, key=mine).status_code == 403
    server.close_session(mine)
    assert send(server, TEXT, TELL, key=mine).status_code == 401
    assert send(server, TEXT, TELL, key=other).status_code == 200


def test_body_cut_off_and_body_that_never_comes_leave_others_served(server: PolicyServer) -> None:
    cut = open_socket(server)
    cut.sendall(begin(server, 1_000) + b'{"prompt": ')
    slow = open_socket(server)
    slow.sendall(begin(server, 1_000))
    silent = open_socket(server)
    cut.close()
    require_served(server)
    garbage = open_socket(server)
    garbage.sendall(b"\x16\x03\x01\x02\x00" * 100)
    assert b"400" in garbage.recv(100)
    require_served(server)
    for one in (slow, silent, garbage):
        one.close()
    require_served(server)


def test_client_that_leaves_frees_its_place(server: PolicyServer) -> None:
    body = b'{"prompt": "the cat", "max_tokens": 500, "ignore_eos": true, "n": 8}'
    leaving = open_socket(server)
    leaving.sendall(begin(server, len(body)) + body)
    while server.open_count < 8:
        time.sleep(0.005)
    full = send(server, TEXT, TELL)
    assert full.status_code == 429
    assert "send the request again later" in full.json()["error"]["message"]
    leaving.close()
    while server.open_count:
        time.sleep(0.005)
    require_served(server)


def test_response_that_takes_too_long_gets_504(policy: ServedPolicy) -> None:
    with serving(policy, timeout_s=0.01) as server:
        answer = send(server, TEXT, LONG)
        assert answer.status_code == 504
        assert "raise timeout_s" in answer.json()["error"]["message"]
        while server.open_count:
            time.sleep(0.005)


def test_many_sessions_forget_only_those_that_rest(policy: ServedPolicy) -> None:
    with serving(policy, max_sessions=2) as server:
        for name in "abcd":
            answer = send(server, TEXT, TELL, **{"X-Session-ID": name})
            assert answer.status_code == 200
        assert send(server, TEXT, TELL, **{"X-Session-ID": "x" * 1_000}).status_code == 400


def test_concurrent_hostile_and_honest_clients_do_not_mix(server: PolicyServer) -> None:
    body = {**TELL, "seed": 9, "return_token_ids": True}
    expected = send(server, TEXT, body).json()["choices"][0]["token_ids"]
    stop = threading.Event()

    def harass() -> None:
        while not stop.is_set():
            for path, bad, status, _ in list(BODIES.values())[:12]:
                assert send(server, path, bad).status_code in (status, 429)

    thread = threading.Thread(target=harass)
    thread.start()
    drawn = [send(server, TEXT, body).json()["choices"][0]["token_ids"] for _ in range(8)]
    stop.set()
    thread.join()
    assert drawn == [expected] * 8
