"""Server of `lockstep watch`: the page of `lockstep report`, updated when a run logs.

It listens only on this machine and serves one page. The printed URL has a key, which other users of
this machine do not know. A request's Host must match this address, too; otherwise another web page
in the reader's browser could read the page by DNS rebinding.
"""

from __future__ import annotations

import io
import secrets
import sys
from collections.abc import Sequence
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any

from lockstep.core.errors import InputError
from lockstep.report.html import find_runs, write_live_report
from lockstep.report.log import LOGS, require_run
from lockstep.report.run_state import read_state

_HOST = "127.0.0.1"


class LiveServer(ThreadingHTTPServer):
    """The server of a page about some runs.

    Attributes:
        folders: The runs, or one sweep.
        key: The path that is answered.

    Raises:
        InputError: An existing folder holds no run; see also `find_runs`.
        OSError: The port is taken.
        OverflowError: The port number is too large.
    """

    def __init__(self, folders: Sequence[Path], port: int) -> None:
        for folder in find_runs(folders):
            require_run(folder)
        super().__init__((_HOST, port), _PageHandler)
        self.folders = folders
        self.key = secrets.token_urlsafe(16)
        self._lock = Lock()
        self._made: tuple[str, bytes] | None = None

    @property
    def url(self) -> str:
        """The URL of the page."""
        return f"http://{_HOST}:{self.server_port}/{self.key}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Reports a crash while answering, unless the reader closed the tab."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def compute_tag(self) -> str:
        """A text that changes when a run logs something or changes its state."""
        tag = ""
        for folder in find_runs(self.folders):
            logs = [folder / name for name in LOGS]
            sizes = [log.stat().st_size if log.is_file() else 0 for log in logs]
            tag += f"{read_state(folder).word}{sizes}"
        return tag

    def render_page(self) -> tuple[str, bytes]:
        """The tag and the page."""
        tag = self.compute_tag()
        with self._lock:
            if self._made is None or self._made[0] != tag:
                file = io.BytesIO()
                write_live_report(self.folders, file)
                self._made = tag, file.getvalue()
            return self._made


def serve_runs(folders: Sequence[Path], port: int) -> None:
    """Serves the page until Ctrl-C.

    Args:
        folders: The runs, or one sweep.
        port: The port; 0 means a free one.

    Raises:
        InputError: A folder holds no run, or the port cannot be used.
    """
    try:
        server = LiveServer(folders, port)
    except (OSError, OverflowError) as error:
        raise InputError(
            f"cannot listen on port {port} of {_HOST} ({error}); choose another --port"
        ) from error
    with server, suppress(KeyboardInterrupt):
        print(f"watching at {server.url} (Ctrl-C stops watching; the runs continue)", flush=True)
        server.serve_forever()


class _PageHandler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: LiveServer  # pyright: ignore[reportIncompatibleVariableOverride]
    timeout = 30

    def do_GET(self) -> None:
        port = self.server.server_port
        if self.headers.get("Host") not in (f"{_HOST}:{port}", f"localhost:{port}"):
            return self._send_answer(
                HTTPStatus.FORBIDDEN, b"the Host is not the address that lockstep watch printed\n"
            )
        if not secrets.compare_digest(self.path.encode(), f"/{self.server.key}/".encode()):
            return self._send_answer(
                HTTPStatus.FORBIDDEN,
                b"open the address that lockstep watch printed, with its key\n",
            )
        try:
            tag, page = (
                self.server.render_page()
                if self.command == "GET"
                else (self.server.compute_tag(), b"")
            )
        except (
            ValueError,
            OSError,
        ) as error:  # an unreadable log, or a run that is being removed
            return self._send_answer(HTTPStatus.SERVICE_UNAVAILABLE, f"{error}\n".encode())
        return self._send_answer(HTTPStatus.OK, page, "text/html; charset=utf-8", tag)

    do_HEAD = do_GET  # the page polls with it for a newer version

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing, to keep the terminal clean."""

    def _send_answer(
        self, status: HTTPStatus, content: bytes, kind: str = "text/plain", tag: str = ""
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("ETag", f'"{tag}"')
        self.end_headers()
        self.wfile.write(content if self.command == "GET" else b"")
