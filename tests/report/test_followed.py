"""The states of a run that is under way, and the server of `lockstep watch`, asked by a browser and
by a stranger.
"""

from __future__ import annotations

import base64
import gzip
import re
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

import pytest
import yaml

from lockstep.report.live import LiveServer
from lockstep.report.overview import read_overview
from lockstep.run.folder.files import lock_folder
from lockstep.run.folder.logs import RunLogs


def begin(folder: Path) -> RunLogs:
    """A run's folder after its first step."""
    logs = RunLogs(folder)
    (folder / "recipe.yaml").write_text(
        yaml.safe_dump({"algorithm": "ppo", "run": {"max_steps": 9}})
    )
    logs.add_metrics(1, {"train/reward": 0.1})
    logs.add_timings(1, {"generate": 2.0, "policy": 1.0, "beside/generate": 50.0})
    return logs


def test_overview_reports_each_state_of_a_run(tmp_path: Path) -> None:
    begin(tmp_path)
    assert read_overview(tmp_path)["state"] == "not finished"
    with lock_folder(tmp_path):
        shown = read_overview(tmp_path)
        assert (shown["state"], shown["step"], shown["planned"]) == ("running", 1, 9)
    assert read_overview(tmp_path)["state"] == "stopped"
    crash = (
        "time  now\n\nTraceback (most recent call last):\n  File x\nOSError: no disk\nphase: save\n"
    )
    (tmp_path / "crash.txt").write_text(crash)
    assert (read_overview(tmp_path)["state"], read_overview(tmp_path)["about_state"]) == (
        "died",
        "OSError: no disk",
    )
    (tmp_path / "final").mkdir()
    assert read_overview(tmp_path)["state"] == "finished"


@contextmanager
def watched(folder: Path) -> Iterator[str]:
    """The address of a server that answers."""
    with LiveServer([folder], 0) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server.url
        finally:
            server.shutdown()
            thread.join()


def ask(url: str, method: str = "GET", **headers: str) -> tuple[int, str, bytes]:
    """The status, the tag and the content of an answer."""
    at = urlsplit(url)
    connection = HTTPConnection(at.netloc, timeout=10)
    connection.putrequest(method, at.path, skip_host=True)
    for name, value in {"Host": at.netloc, **headers}.items():
        connection.putheader(name, value)
    connection.endheaders()
    reply = connection.getresponse()
    content = reply.read()
    connection.close()
    return reply.status, reply.headers.get("ETag", ""), content


def test_watch_page_and_etag_change_after_new_metrics(tmp_path: Path) -> None:
    logs = begin(tmp_path)
    with watched(tmp_path) as url:
        _, first, page = ask(url)
        assert b"connect-src 'self'" in page
        assert ask(url, "HEAD") == (200, first, b"")
        logs.add_metrics(2, {"train/reward": 0.2})
        _, second, newer = ask(url)
        assert second != first
        assert newer != page


def test_watch_shows_the_started_runs_of_a_sweep(tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text('{"seed=0": {"seed": 0}, "seed=1": {"seed": 1}}')
    begin(tmp_path / "seed=0")
    with watched(tmp_path) as url:
        _, first, page = ask(url)
        begin(tmp_path / "seed=1")
        _, second, newer = ask(url)
    assert first != second
    assert [b'id="samples-1"' in shown for shown in (page, newer)] == [False, True]
    block = re.findall(rb'id="report">(.*?)<', newer)[0]
    assert b'"sweep"' in gzip.decompress(base64.b64decode(block))


def test_closed_browser_tab_prints_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    begin(tmp_path)
    with watched(tmp_path) as url:
        at = urlsplit(url)
        for request in (b"", f"GET {at.path} HTTP/1.1\r\nHost: {at.netloc}\r\n\r\n".encode()):
            tab = socket.create_connection((at.hostname, at.port))
            tab.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            tab.sendall(request)
            tab.close()  # resets the connection
        assert ask(url)[0] == 200
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "", "localhost.evil.example"]
)
def test_watch_server_rejects_foreign_host_header(tmp_path: Path, host: str) -> None:
    begin(tmp_path)
    with watched(tmp_path) as url:
        assert ask(url, Host=host)[0] == 403
        assert ask(url, Host=f"localhost:{urlsplit(url).port}")[0] == 200


@pytest.mark.parametrize(
    "path", ["", "/", "/x", "//", "/KEY", "/KEY/recipe.yaml", "/KEY/../recipe.yaml"]
)
def test_watch_server_serves_only_its_secret_address(tmp_path: Path, path: str) -> None:
    begin(tmp_path)
    with watched(tmp_path) as url:
        key = urlsplit(url).path.strip("/")
        status, _, content = ask(f"http://{urlsplit(url).netloc}{path.replace('KEY', key)}")
    assert (status, content[:21]) == (403, b"open the address that")


def test_watch_command_listens_on_loopback_and_exits_cleanly_on_interrupt(
    tmp_path: Path,
) -> None:
    begin(tmp_path)
    command = [sys.executable, "-m", "lockstep", "watch", str(tmp_path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        found = re.fullmatch(
            r"watching at (http://127\.0\.0\.1:\d+/[\w-]{22}/) .*\n", process.stdout.readline()
        )
        assert found is not None
        assert ask(found[1])[0] == 200
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (0, "")
