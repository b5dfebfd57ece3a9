"""A child process that answers JSON lines, for code that may hang, crash or print.

`HelperProcess` is the asking side. The other side is this file run as a program: it imports a
module, calls its `answers(*arguments)` once, passes every question to the returned function, and
sends back every reply that it yields. This file has no heavy imports, so that a child starts
without torch.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from lockstep.helpers.descendants import adopt_orphans, end_children, find_descendants, kill_all
from lockstep.system.background import SIGNAL_CHECK_S
from lockstep.system.guarded_imports import split_path
from lockstep.system.printable import make_printable
from lockstep.system.process_defaults import spare_modules

_START_S = 120.0  # a user's module can import slowly on a busy disk
_LOST = 75  # exit status of a child with a lost connection
_PRINTED = 20_000  # maximum number of characters to show per print
_GRACE_S = 0.5  # for a child to exit when there are no more questions


AnswerFunction = Callable[[Any], Iterator[Any]]
"""The function returned by `answers(*arguments)`, which answers questions in the child."""


class ChildError(Exception):
    """The child could not start; the text is the reason, such as its module's error.

    Attributes:
        may_pass: As in `ChildDied`.
    """

    def __init__(self, why: str, may_pass: bool = False) -> None:
        super().__init__(why)
        self.may_pass = may_pass


class ChildDied(Exception):
    """The child ended before it answered; the text describes how.

    Attributes:
        signal: The signal that ended the child; None if it was not a signal.
        may_pass: True if the machine, not the question, seems to be the cause, so that a retry may
            help.
    """

    def __init__(self, how: str, signal: int | None = None, may_pass: bool = False) -> None:
        super().__init__(how)
        self.signal = signal
        self.may_pass = may_pass


class ChildHangs(Exception):
    """The child exceeded its timeout."""


class HelperProcess:
    """A child process that starts and restarts on demand; usable from any thread.

    Args:
        module: Module with `answers`; imported only in the child.
        arguments: Arguments of `answers`.
    """

    def __init__(self, module: str, *arguments: str) -> None:
        self._module = module
        self._arguments = arguments
        self._lock = threading.Lock()
        self._running: _RunningChild | None = None
        self._killed = False

    def __reduce__(self) -> tuple[type[HelperProcess], tuple[str, ...]]:
        return type(self), (self._module, *self._arguments)

    def start(self) -> None:
        """Starts the process if it is not running, and waits until it is ready.

        Raises:
            ChildError: If the module or `answers` raised, ended the process, or took two minutes.
        """
        with self._lock:
            self._ensure_started()

    @contextmanager
    def ask_streaming(self, question: Any) -> Iterator[Callable[[float], Any]]:
        """Sends a question; yields a function that waits for the next reply with a timeout.

        An exception in the block leaves unread replies, so it ends the child: they must not answer
        the next question.

        Raises:
            ChildDied, ChildHangs: Also from that function.
            ChildError: As in `start`.
        """
        with self._lock:
            running = self._ensure_started()
            try:
                running.send_question(question)
                yield running.read_reply
            except BaseException:
                running.end_process(at_once=True)
                raise

    def kill(self) -> None:
        """Ends the process permanently; a thread that starts or uses it gets ChildDied."""
        self._killed = True
        if self._running is not None and self._running.is_usable():
            self._running.kill_tree()

    def _ensure_started(self) -> _RunningChild:
        if self._running is None or not self._running.is_usable():
            self._running = self._start_child()
            weakref.finalize(self, self._running.end_process)
        if self._killed:
            self._running.end_process(at_once=True)
            raise ChildDied("killed on purpose")
        return self._running

    def _start_child(self) -> _RunningChild:
        """Starts the process, and waits until it is ready."""
        ours, theirs = socket.socketpair()
        descriptor = theirs.fileno()
        with theirs:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    __name__,
                    str(descriptor),
                    self._module,
                    *self._arguments,
                ],
                stdin=subprocess.DEVNULL,
                pass_fds=(descriptor,),
                # The child has the same module search path as this process.
                env={**os.environ, **split_path()},
                # so that Ctrl-C does not reach it before it ignores the signal
                start_new_session=True,
            )
            running = _RunningChild(process, ours, os.getpid())
        try:
            running.read_reply(_START_S)
        except BaseException as error:
            running.end_process(at_once=True)
            code = next(iter(self._arguments), self._module)
            if isinstance(error, ChildHangs):
                raise ChildError(f"importing {code} takes too long") from None
            if isinstance(error, ChildDied):
                raise ChildError(
                    f"importing {code} ended the process ({error})", error.may_pass
                ) from None
            raise
        return running


@dataclass
class _RunningChild:
    """One instance of a child: its process, its connection, and unused input."""

    process: subprocess.Popen[bytes]
    connection: socket.socket
    owner: int  # after a fork two processes must not share a connection
    unread: bytes = b""

    def is_usable(self) -> bool:
        return (
            self.owner == os.getpid()
            and self.process.poll() is None
            and self.connection.fileno() >= 0
        )

    def send_question(self, question: Any) -> None:
        self.connection.settimeout(None)
        try:
            self.connection.sendall(json.dumps(question).encode() + b"\n")
        except OSError:
            raise self._describe_death() from None

    def read_reply(self, timeout_s: float) -> Any:
        """Returns the next reply; prints the child's output before it."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                kind, text = json.loads(self._read_line(deadline))
            except (ValueError, TypeError, RecursionError):
                raise ChildDied("it wrote to its process's connection") from None
            if kind == "failed":
                raise ChildError(text)
            if kind != "printed":
                return text
            print(make_printable(text), flush=True)

    def end_process(self, at_once: bool = False) -> None:
        if self.owner != os.getpid():
            return
        self.connection.close()
        if self.process.returncode is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.0 if at_once else _GRACE_S)
                return  # by itself, after its descendants
        self.kill_tree()
        self.process.wait()

    def kill_tree(self) -> None:
        """Kills the process and its descendants."""
        if self.process.returncode is not None:
            return
        self.process.send_signal(signal.SIGSTOP)  # so that it starts no more processes
        kill_all(find_descendants(self.process.pid))
        self.process.kill()

    def _read_line(self, deadline: float) -> bytes:
        parts = [self.unread]
        while b"\n" not in parts[-1]:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                self.unread = b"".join(parts)
                raise ChildHangs
            self.connection.settimeout(min(left_s, SIGNAL_CHECK_S))
            try:
                received = self.connection.recv(1 << 16)
            except TimeoutError:
                continue
            except OSError:
                received = b""
            if not received:
                raise self._describe_death()
            parts.append(received)
        line, _, self.unread = b"".join(parts).partition(b"\n")
        return line

    def _describe_death(self) -> ChildDied:
        try:
            code = self.process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            return ChildDied("it closed its connection", may_pass=True)
        with contextlib.suppress(OSError):  # its descendants have its process group
            os.killpg(self.process.pid, signal.SIGKILL)
        if code >= 0:
            return ChildDied(f"exit status {code}", may_pass=code == _LOST)
        return ChildDied(
            f"killed by {signal.Signals(-code).name}", -code, may_pass=-code == signal.SIGKILL
        )


def _truncate_print(text: str) -> str:
    """Truncates a long print and appends the number of omitted characters."""
    if len(text) <= _PRINTED:
        return text
    return f"{text[:_PRINTED]} … ({len(text) - _PRINTED:,} more characters)"


class _ForwardedOutput(io.TextIOBase):
    """Output of a child, sent to the parent line by line for its display."""

    def __init__(self, say: Callable[[str, Any], None]) -> None:
        self._say = say
        self._begun = ""

    def write(self, text: str, /) -> int:
        lines, newline, self._begun = (self._begun + text).rpartition("\n")
        if newline:
            self._say("printed", _truncate_print(lines))
        self._begun = self._begun[-_PRINTED:]
        return len(text)


def serve_answers(descriptor: str, module: str, *arguments: str) -> None:
    """Main loop of the child.

    The parent handles signals that end a run, and ends its children.

    Args:
        descriptor: Number of the connection's descriptor.
        module: As in `HelperProcess`.
        arguments: As in `HelperProcess`.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    connection = socket.socket(fileno=int(descriptor))
    adopt_orphans()
    threading.Thread(target=_watch_parent, args=(os.getppid(), connection), daemon=True).start()

    saying = threading.Lock()

    def send_message(kind: str, content: Any) -> None:
        line = json.dumps([kind, content]).encode() + b"\n"
        with saying:
            connection.sendall(line)

    _catch_output(send_message)
    sys.stdout = sys.stderr = _ForwardedOutput(send_message)
    try:
        with spare_modules():
            answers: AnswerFunction = importlib.import_module(module).answers(*arguments)
    except Exception as error:
        send_message("failed", str(error))
        return
    try:
        send_message("ready", None)
        for line in connection.makefile("rb"):
            for reply in answers(json.loads(line)):
                send_message("reply", reply)
    except OSError:  # the connection is closed: the parent has ended and would not read a traceback
        end_children()
        os._exit(_LOST)
    end_children()


def _catch_output(say: Callable[[str, Any], None]) -> None:
    """Forwards output that libraries and subprocesses write to the output descriptors."""
    reads, writes = os.pipe()
    for descriptor in (1, 2):
        os.dup2(writes, descriptor)
    os.close(writes)

    def forward_lines() -> None:
        with open(reads, errors="replace", encoding="utf-8") as lines:
            for line in lines:
                say("printed", _truncate_print(line.removesuffix("\n")))

    threading.Thread(target=forward_lines, daemon=True).start()


def _watch_parent(parent: int, connection: socket.socket) -> None:
    """Ends this process with its parent, even if an answer hangs."""
    closed = select.poll()
    closed.register(connection, 0)
    while os.getppid() == parent and not closed.poll(1000):
        pass
    time.sleep(1.0)  # for it to exit by itself
    end_children()
    os._exit(1)


if __name__ == "__main__":
    serve_answers(*sys.argv[1:])
