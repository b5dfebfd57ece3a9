"""The server of `lockstep watch`, asked as a browser and as a stranger would ask."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

import pytest
import yaml

from lockstep.report.live import LiveRuns, open_server
from lockstep.run.folder.files import lock_folder
from lockstep.run.folder.logs import Logs

SAMPLE = {"id": "t:1", "prompt": "Q", "response": "A", "score": 1.0, "token": {"text": ["A"], "mask": [1]}}


def begin(folder: Path, steps: int = 1) -> Logs:
    """A run's folder after some steps."""
    logs = Logs(folder)
    (folder / "recipe.yaml").write_text(yaml.safe_dump({"algorithm": "ppo", "run": {"max_steps": 9}}))
    for step in range(1, steps + 1):
        advance(logs, step)
    return logs


def advance(logs: Logs, step: int) -> None:
    logs.metrics(step, {"train/reward": 0.1 * step})
    logs.timings(step, {"generate": 2.0, "policy": 1.0, "beside/generate": 50.0})
    logs.samples(step, [SAMPLE])


@contextmanager
def watched(*named: Path, home: Path = Path("runs")) -> Iterator[str]:
    """The address of a server that answers."""
    with open_server(LiveRuns(named, home), 0) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server.url
        finally:
            server.shutdown()
            thread.join()


def ask(url: str, path: str, **headers: str) -> tuple[HTTPResponse, bytes]:
    """Asks for what is below an address."""
    at = urlsplit(url)
    connection = HTTPConnection(at.netloc, timeout=10)
    connection.putrequest("GET", at.path.removesuffix("/") + path, skip_host=True)
    for name, value in {"Host": at.netloc, **headers}.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    reply = connection.getresponse()
    content = reply.read()
    connection.close()
    return reply, content


def report(url: str) -> list[dict[str, object]]:
    return json.loads(ask(url, "/data/report")[1])["runs"]


def test_the_page_has_no_data_of_its_own_and_asks_this_server_alone(tmp_path: Path) -> None:
    begin(tmp_path / "run")
    with watched(tmp_path / "run") as url:
        reply, page = ask(url, "/")
    assert reply.status == 200
    assert b"connect-src 'self'" in page
    assert b'id="report"' not in page


def test_the_report_follows_the_run_through_its_states(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    logs = begin(folder)
    with watched(folder) as url:
        assert report(url)[0]["state"] == "not finished"
        with lock_folder(folder):
            [run] = report(url)
            assert (run["state"], run["step"], run["planned"], run["left_s"]) == ("running", 1, 9, 24.0)
            advance(logs, 2)
            assert report(url)[0]["step"] == 2
        assert report(url)[0]["state"] == "stopped"
        crash = "time  now\n\nTraceback (most recent call last):\n  File x\nOSError: no disk\nphase: save\n"
        (folder / "crash.txt").write_text(crash)
        assert (report(url)[0]["state"], report(url)[0]["about_state"]) == ("died", "OSError: no disk")
        (folder / "final").mkdir()
        assert (report(url)[0]["state"], report(url)[0]["left_s"]) == ("finished", None)


@pytest.mark.parametrize(
    "path",
    [
        "/recipe.yaml", "/../recipe.yaml", "/data/../recipe.yaml", "/data/%2e%2e/recipe.yaml", "//etc/passwd",
        "/data/report/", "/data/samples-0/../../recipe.yaml", "/data/samples--1", "/data/tokens-0-0%00", "/data/", "/x",
        "/data/report?x",
    ],
)  # fmt: skip
def test_nothing_else_is_served(tmp_path: Path, path: str) -> None:
    begin(tmp_path / "run")
    with watched(tmp_path / "run") as url:
        reply, content = ask(url, path)
    assert reply.status == 404
    assert content == b"there is nothing here\n"


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "", "localhost.evil.example"])
def test_a_request_by_another_name_is_refused(tmp_path: Path, host: str) -> None:
    begin(tmp_path / "run")
    with watched(tmp_path / "run") as url:
        for path in ("/", "/data/report"):
            assert ask(url, path, Host=host)[0].status == 403
        assert ask(url, "/", Host=f"localhost:{urlsplit(url).port}")[0].status == 200


@pytest.mark.parametrize("key", ["", "/", "/x", "/x/", "//", "/data"])
def test_a_request_without_the_key_is_refused(tmp_path: Path, key: str) -> None:
    begin(tmp_path / "run")
    with watched(tmp_path / "run") as url:
        address = f"http://{urlsplit(url).netloc}"
        for path in ("/", "/data/report"):
            reply, content = ask(address, key + path)
            assert (reply.status, content[:21]) == (403, b"open the address that")


def test_other_machines_find_no_server(tmp_path: Path) -> None:
    begin(tmp_path / "run")
    with open_server(LiveRuns([tmp_path / "run"], tmp_path), 0) as server:
        assert server.server_address[0] == "127.0.0.1"


def test_without_a_name_the_newest_runs_are_shown_and_later_ones_come_last(tmp_path: Path) -> None:
    for number in range(7):
        begin(tmp_path / f"run{number}")
    with watched(home=tmp_path) as url:
        names = [run["name"] for run in report(url)]
        assert len(names) == 5
        begin(tmp_path / "later")
        runs = report(url)
        assert runs[-1]["name"] == "later"
        assert [run["name"] for run in runs if not run["aside"]] == ["later"]
    with watched(home=tmp_path / "nothing") as url:
        assert report(url) == []


def test_the_command_prints_the_address_and_ends_by_an_interrupt(tmp_path: Path) -> None:
    begin(tmp_path / "run")
    command = [sys.executable, "-m", "lockstep", "watch", str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = re.fullmatch(r"watching at (http://127\.0\.0\.1:\d+/[\w-]{22}/) .*\n", process.stdout.readline())
        assert found is not None
        assert ask(found[1], "/data/report")[0].status == 200
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (0, "")
