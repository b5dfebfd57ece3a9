"""A transport to a child process on this machine, over a socket.

Children are not forked from their parent, whose threads and locks they would inherit, but from a
server (multiprocessing's forkserver) that has only imported what workers need; that takes seconds
and is done once. A script that starts children must do so under `if __name__ == "__main__":`, since
each child imports the script again; without that guard the child exits when it would start
children, and the parent reports that.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from multiprocessing import connection
from multiprocessing.context import ForkServerContext

from tqdm import tqdm

from lockstep.cluster.transport import (
    CLOSED,
    GRACE_S,
    SocketChannel,
    WireMessage,
    WorkerFactory,
    serve_calls,
    take_threads,
)
from lockstep.system.unread import wrap_stream

_UNGUARDED = 79
"""Exit code of a child that would start children while it imports the script."""


class ChildProcess:
    """A worker as a child process; implements `transport.WorkerTransport`.

    The child always ends with its parent.

    Args:
        factory: Builds the object that answers calls; the child's first message has the outcome.
        name: Display name of the process.
        threads: Torch threads of the child.
        environment: Additional environment variables of the child.
    """

    def __init__(
        self, factory: WorkerFactory, name: str, threads: int, environment: Mapping[str, str]
    ) -> None:
        exit_unguarded()
        ours, theirs = socket.socketpair()
        args = theirs, threads, os.environ | dict(environment)
        self._process = open_fork_server().Process(
            target=_run_child, args=args, name=name, daemon=True
        )
        self._process.start()
        theirs.close()
        self._channel = SocketChannel(ours)
        self._closed = False
        # Fails if a child dies at start; the first `receive_message` then tells how it died.
        with contextlib.suppress(ConnectionError):
            self._channel.send_message(factory)

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def send_message(self, message: WireMessage, timeout_s: float) -> None:
        self._channel.send_message(message, timeout_s)

    def receive_message(self, timeout_s: float) -> WireMessage:
        return self._channel.receive_message(timeout_s)

    def has_message(self, timeout_s: float) -> bool:
        return self._closed or bool(connection.wait([self._channel.fileno()], timeout_s))

    def is_alive(self) -> bool:
        return not self._closed and self._process.is_alive()

    def describe_ending(self) -> str:
        if self._closed:
            return CLOSED
        self._process.join(GRACE_S)
        code = self._process.exitcode
        if code is None:
            return "it closed its connection"
        if code == _UNGUARDED:
            script = os.path.basename(sys.argv[0])
            return (
                f"each worker imports {script}, which then starts workers; put its code under "
                'if __name__ == "__main__":'
            )
        if code >= 0:
            return f"exit code {code}"
        return f"killed by {signal.Signals(-code).name}"

    def close(self, at_once: bool = False) -> None:
        if self._closed:
            return
        self._closed = True
        self._channel.close()
        if not at_once:
            self._process.join(GRACE_S)
        self._process.kill()
        self._process.join()


def exit_unguarded() -> None:
    """Exits if this process is a child that only imports the script; its parent reports why."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        os._exit(_UNGUARDED)


def open_fork_server() -> ForkServerContext:
    """The context that starts processes from a server with the workers' imports."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["lockstep.cluster.specs"])
    return context


def _run_child(ours: socket.socket, threads: int, environment: dict[str, str]) -> None:
    """The child's main function.

    The parent handles Ctrl-C, SIGTERM and SIGHUP, and closes its children.

    The environment is set to the parent's current one, since the server's is from when the first
    child was started. The child exits without the interpreter's cleanup, which takes seconds once
    `transformers` is loaded.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.environ.clear()
    os.environ.update(environment)
    sys.stderr = wrap_stream(sys.stderr)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    take_threads(threads)
    # tqdm's own lock is multiprocessing's, which Python would report as leaked
    tqdm.set_lock(threading.RLock())
    with contextlib.suppress(EOFError, ConnectionError):
        channel = SocketChannel(ours)
        serve_calls(channel.receive_frame, channel.send_message)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _end_with_parent() -> None:
    """Exits when the parent ends.

    A thread does this, because a worker that is computing does not notice that its connection is
    closed.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None, "a child process has a parent"
    parent.join()
    os._exit(1)
