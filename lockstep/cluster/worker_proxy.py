"""A generic proxy for an object in another process, with deadlines and detection of death.

A worker does one thing at a time, so a proxy has at most one open call; `submit` returns
immediately, so that several workers run in parallel.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from typing import Any

from lockstep.cluster.transport import (
    CallFailure,
    CallResult,
    MethodCall,
    StreamItem,
    WireMessage,
    WorkerTransport,
)
from lockstep.core.errors import RunError

POLL_S = 0.002
"""Seconds per poll of one of several workers."""

_TOGETHER_S = 0.05
"""Seconds per poll if all workers must answer; longer only delays the report of a failure."""

BUILD = "build"
"""Verb of a worker's first call, which builds its object."""


class RemoteError(RuntimeError):
    """A method raised in its worker; the text ends with the worker's traceback.

    The worker can be called again.
    """


class WorkerDied(RunError):
    """A worker's process died, or exceeded its deadline and was ended."""


class PendingCall:
    """A call in progress."""

    def __init__(self, transport: WorkerTransport, name: str, verb: str, timeout_s: float) -> None:
        self.name = name
        self.verb = verb
        self.open = True
        self._transport = transport
        self._timeout_s = timeout_s
        self._unsent: WorkerDied | None = None
        self.restart_deadline()

    def restart_deadline(self) -> None:
        """Restarts the deadline from now."""
        self._deadline = time.monotonic() + self._timeout_s

    def send_call(self, call: MethodCall) -> None:
        """Sends the worker the call; if the worker is gone, `result` raises as for any death."""
        try:
            self._transport.send_message(call, self._timeout_s)
        except TimeoutError:
            self._unsent = self._end_late_worker()
        except OSError:
            self._unsent = self._describe_death("before")

    def is_done(self, wait_s: float = 0.0) -> bool:
        """True if `result` would return or raise without waiting; waits up to `wait_s` for that."""
        return (
            self._unsent is not None
            or self._transport.has_message(wait_s)
            or time.monotonic() > self._deadline
        )

    def result(self) -> Any:
        """Waits for the outcome; raises as `WorkerProxy.call`."""
        message = self.next_message()
        if isinstance(message, StreamItem):
            self.discard_rest()
            raise TypeError(
                f"{self.verb} of worker {self.name} streams its result; use WorkerProxy.stream"
            )
        assert isinstance(message, CallResult), (
            f"expected a result from the worker, not {type(message).__name__}"
        )
        return message.value

    def next_message(self) -> WireMessage:
        """Waits for a stream's next item, each with its own deadline, or for the final result."""
        message = self._receive_message()
        if not isinstance(message, CallFailure):
            return message
        if message.family is None:
            raise RemoteError(
                f"{self.verb} of worker {self.name} raised {message.kind}: {message.message}\n"
                f"{message.trace}"
            )
        error = message.family(message.message)
        error.add_note(f"raised in {self.verb} of worker {self.name}:\n{message.trace}")
        raise error

    def _receive_message(self) -> WireMessage:
        if self._unsent is not None:
            raise self._unsent
        try:
            message = self._transport.receive_message(max(0.0, self._deadline - time.monotonic()))
        except TimeoutError as error:
            raise self._end_late_worker() from error
        except (EOFError, OSError) as error:
            raise self._describe_death("in") from error
        self.restart_deadline()
        self.open = isinstance(message, StreamItem)
        return message

    def discard_rest(self) -> None:
        """Discards the rest of an unwanted call, so that the worker is free for the next."""
        while self.open:
            self._receive_message()

    def end_worker(self) -> None:
        """Ends the worker of a call that will not end by itself."""
        self.open = False
        self._transport.close(at_once=True)

    def _end_late_worker(self) -> WorkerDied:
        self.end_worker()
        return WorkerDied(
            f"worker {self.name} took longer than {self._timeout_s:g} s for {self.verb} and was "
            "ended"
        )

    def _describe_death(self, when: str) -> WorkerDied:
        self.open = False
        return WorkerDied(
            f"worker {self.name} died {when} {self.verb}: {self._transport.describe_ending()}"
        )


class WorkerProxy:
    """A proxy of a worker, and its open call.

    Args:
        transport: Connection to the worker.
        name: Name of the worker, for error messages.
        timeout_s: Timeout of a call, or of an item of a stream.

    Attributes:
        pending: Newest call; the first builds the worker's object.
    """

    def __init__(self, transport: WorkerTransport, name: str, timeout_s: float) -> None:
        self._transport = transport
        self.name = name
        self.timeout_s = timeout_s
        self.pending = PendingCall(transport, name, BUILD, timeout_s)

    def wait_until_ready(self) -> None:
        """Waits until the worker has built its object; raises its error.

        Any call does so, too.
        """
        if self.pending.verb == BUILD and self.pending.open:
            self.pending.result()

    def submit(self, verb: str, *args: Any, **keywords: Any) -> PendingCall:
        """Starts a call without waiting, even if the worker is gone, so that calls run in parallel.

        Raises:
            WorkerDied: If the worker was lost while it built its object.
            RuntimeError: If another call is open.
        """
        self.wait_until_ready()
        if self.pending.open:
            raise RuntimeError(
                f"worker {self.name} received {verb} while {self.pending.verb} is running"
            )
        pending = PendingCall(self._transport, self.name, verb, self.timeout_s)
        pending.send_call(MethodCall(verb, args, keywords))
        self.pending = pending
        return pending

    def call(self, verb: str, *args: Any, **keywords: Any) -> Any:
        """Runs a method of the worker's object.

        Raises:
            LockstepError, FloatingPointError: As the method raised; a note has the worker's
                traceback.
            RemoteError: If the method raised anything else.
            WorkerDied: If the worker is gone, or took too long and was ended.
        """
        return self.submit(verb, *args, **keywords).result()

    def stream(self, verb: str, *args: Any, **keywords: Any) -> Generator[Any, None, None]:
        """Runs a method that returns an iterator; yields items as they arrive; raises as `call`."""
        pending = self.submit(verb, *args, **keywords)
        try:
            while isinstance(message := pending.next_message(), StreamItem):
                yield message.value
        finally:
            pending.discard_rest()

    def close(self, at_once: bool = False) -> None:
        """Ends the worker, after its current call unless `at_once`."""
        self._transport.close(at_once)

    def is_alive(self) -> bool:
        """True while the worker runs."""
        return self._transport.is_alive()


def wait_for_calls(calls: Sequence[PendingCall], grace_s: float = 5.0) -> list[Any]:
    """Waits for calls on several workers.

    Args:
        calls: Open calls.
        grace_s: Seconds for the others after the first failure; then those still at work are ended,
            since they may be waiting, in a collective, for the failed one.

    Returns:
        Results, in the order of the calls.

    Raises:
        Exception: As the calls; a death takes precedence over errors that it may have caused.
    """
    results: dict[PendingCall, Any] = {}
    failures: list[Exception] = []
    waiting = list(calls)
    deadline = float("inf")
    while waiting and time.monotonic() < deadline:
        for call in [call for call in waiting if call.is_done(_TOGETHER_S)]:
            waiting.remove(call)
            try:
                results[call] = call.result()
            except Exception as error:
                failures.append(error)
                deadline = min(deadline, time.monotonic() + grace_s)
    for call in waiting:
        call.end_worker()
    if failures:
        raise next((error for error in failures if isinstance(error, WorkerDied)), failures[0])
    return [results[call] for call in calls]
