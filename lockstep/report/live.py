"""The server of `lockstep watch`: the page of `lockstep report`, which asks for its data again and again.

It listens on this machine alone and answers nothing but the page and its data, whose names are looked up and never
opened as paths. The printed address has a key, which other users of this machine do not know. A request must have that
address as its Host, too; otherwise another web page in the reader's browser could ask by DNS rebinding.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock

from lockstep.core.errors import InputError
from lockstep.report.document import write_document
from lockstep.report.html import describe_runs
from lockstep.report.log import CRASH, METRICS, SAMPLES, TIMINGS, plain, require_run
from lockstep.report.run_state import read_state
from lockstep.report.samples import pack_samples

_HOST = "127.0.0.1"
_NEWEST = 5
"""Runs that are shown where none is named."""

_NAME = re.compile(r"data/(?:report|samples-(?P<run>\d{1,6})|tokens-(?P<of>\d{1,6})-(?P<block>\d{1,9}))", re.ASCII)

Stamp = tuple[int, int]
"""Size of a file and when it was changed."""


@dataclass
class _Packed:
    """A run's samples as they were packed last; the blocks by number."""

    stamp: Stamp
    index: bytes = b""
    blocks: dict[int, bytes] = field(default_factory=dict)


class LiveRuns:
    """The runs of a page, and their data as it is now.

    Args:
        named: Folders of runs. If there are none, the newest runs are shown.
        home: The folder in which these are looked for.

    Raises:
        InputError: If a named folder is there and holds no run.
    """

    def __init__(self, named: Sequence[Path], home: Path) -> None:
        for folder in named:
            require_run(folder)
        self._named, self._home = named, home
        self._known: list[Path] = []
        self._packed: dict[Path, _Packed] = {}
        self._report: tuple[str, bytes] = ("", b"")
        self._lock = Lock()

    def folders(self) -> list[Path]:
        """The runs in the order of their numbers: one that appears later comes last."""
        if self._named:
            return list(self._named)
        found = [path.parent for path in self._home.glob("*/recipe.yaml")]
        newest = sorted(found, key=_last_work_ns, reverse=True)[:_NEWEST]
        self._known = [folder for folder in self._known if folder in found]
        self._known += [folder for folder in newest if folder not in self._known]
        return list(self._known)

    def report(self) -> tuple[str, bytes]:
        """Returns everything but samples as JSON, behind a tag that is another one whenever something has changed."""
        with self._lock:
            folders = self.folders()
            tag = _tag(folders)
            if tag != self._report[0]:
                about = describe_runs(folders)
                newest = folders if self._named else sorted(folders, key=_last_work_ns)[-1:]
                for run, folder in zip(about["runs"], folders, strict=True):
                    run["aside"] = folder not in newest
                self._report = tag, json.dumps(plain(about), allow_nan=False).encode()
            return self._report

    def samples(self, run: int, block: int | None) -> bytes | None:
        """The index of a run's samples, or a block of them; None: there is none."""
        with self._lock:
            folders = self._named or self._known
            if run >= len(folders):
                return None
            folder = folders[run]
            stamp = _stamp(folder / SAMPLES)
            if folder not in self._packed or self._packed[folder].stamp != stamp:
                packed = _Packed(stamp)
                packed.index = pack_samples(folder, packed.blocks.__setitem__)
                self._packed[folder] = packed
            packed = self._packed[folder]
            return packed.index if block is None else packed.blocks.get(block)


def serve(runs: LiveRuns, port: int) -> None:
    """Serves the page until it is interrupted.

    Args:
        runs: The runs.
        port: The port; 0 is a free one.

    Raises:
        InputError: If the port cannot be had.
    """
    with open_server(runs, port) as server:
        print(f"watching at {server.url} (Ctrl-C ends it; the runs go on)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()


class LiveServer(ThreadingHTTPServer):
    """The server of some runs.

    Attributes:
        runs: The runs.
        key: The first part of the paths that are answered.
    """

    def __init__(self, runs: LiveRuns, port: int) -> None:
        super().__init__((_HOST, port), _Handler)
        self.runs, self.key = runs, secrets.token_urlsafe(16)

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://{_HOST}:{self.server_port}/{self.key}/"


def open_server(runs: LiveRuns, port: int) -> LiveServer:
    """Opens the server, which answers once `serve_forever` is called.

    Raises:
        InputError: If the port cannot be had.
    """

    try:
        return LiveServer(runs, port)
    except (OSError, OverflowError) as error:
        raise InputError(f"port {port} of {_HOST} cannot be had ({error}); choose another --port, or none") from error


class _Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: LiveServer  # pyright: ignore[reportIncompatibleVariableOverride]
    timeout = 30

    def do_GET(self) -> None:
        port = self.connection.getsockname()[1]
        if self.headers.get("Host") not in (f"{_HOST}:{port}", f"localhost:{port}"):
            return self._answer(HTTPStatus.FORBIDDEN, b"the Host is not the address that lockstep watch printed\n")
        _, key, path = f"{self.path}//".split("/", 2)
        if not secrets.compare_digest(key.encode(), self.server.key.encode()):
            return self._answer(HTTPStatus.FORBIDDEN, b"open the address that lockstep watch printed, with its key\n")
        try:
            return self._get(path.removesuffix("//"))
        except (ValueError, OSError) as error:  # a log that cannot be read now, or a run that is being removed
            return self._answer(HTTPStatus.SERVICE_UNAVAILABLE, f"{error}\n".encode())

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing: the terminal is the reader's."""

    def _get(self, path: str) -> None:
        if not path:
            page = io.BytesIO()
            write_document(page, {}, live=True)
            return self._answer(HTTPStatus.OK, page.getvalue(), "text/html; charset=utf-8")
        name = _NAME.fullmatch(path)
        if name is None:
            return self._answer(HTTPStatus.NOT_FOUND, b"there is nothing here\n")
        if name[0] == "data/report":
            tag, content = self.server.runs.report()
            is_same = self.headers.get("If-None-Match") == tag
            status = HTTPStatus.NOT_MODIFIED if is_same else HTTPStatus.OK
            return self._answer(status, b"" if is_same else content, "application/json", tag)
        block = None if name["block"] is None else int(name["block"])
        content = self.server.runs.samples(int(name["run"] or name["of"]), block)
        if content is None:
            return self._answer(HTTPStatus.NOT_FOUND, b"there is no such data\n")
        return self._answer(HTTPStatus.OK, content, "application/octet-stream")

    def _answer(self, status: HTTPStatus, content: bytes, kind: str = "text/plain", tag: str | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        if tag is not None:
            self.send_header("ETag", tag)
        self.end_headers()
        self.wfile.write(content)


def _tag(folders: Sequence[Path]) -> str:
    """A digest of all that the report is made of."""
    seen = [
        [str(folder), read_state(folder).word, *(_stamp(folder / name) for name in (METRICS, TIMINGS, SAMPLES, CRASH))]
        for folder in folders
    ]
    return f'"{hashlib.sha256(json.dumps(seen).encode()).hexdigest()[:16]}"'


def _stamp(path: Path) -> Stamp:
    try:
        found = path.stat()
    except OSError:
        return (0, 0)
    return (found.st_size, found.st_mtime_ns)


def _last_work_ns(folder: Path) -> int:
    """The time at which a run was worked on last."""
    return max(_stamp(folder / METRICS)[1], _stamp(folder / "recipe.yaml")[1])
