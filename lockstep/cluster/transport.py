"""The wire between proxy and worker: messages, their bytes, framed sockets, and the serving loop.

A tensor travels as its bytes, next to the pickle and never through shared memory: the receiver gets
a copy on the CPU that no later update of the sender can change, and a killed worker leaves nothing
behind.
"""

from __future__ import annotations

import copyreg
import io
import os
import pickle
import socket
import struct
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import isfunction
from typing import Any, Protocol

import torch
from torch import Tensor

from lockstep.core.errors import LockstepError

WorkerFactory = Callable[[], Any]
"""The first message to a worker: small and picklable; builds the object that answers all calls."""


@dataclass(frozen=True)
class MethodCall:
    """Run a method."""

    verb: str
    args: Sequence[Any]
    keywords: Mapping[str, Any]


@dataclass(frozen=True)
class StreamItem:
    """One element of a streamed result."""

    value: Any


@dataclass(frozen=True)
class CallResult:
    """A call's result; for a stream, after its items."""

    value: Any


@dataclass(frozen=True)
class CallFailure:
    """The exception that ended a call.

    Attributes:
        kind: Name of the exception's class.
        message: Message of the exception.
        trace: Traceback in the worker.
        family: Class of the error that the caller raises, if the text is a sentence for the user;
            None: a crash.
    """

    kind: str
    message: str
    trace: str
    family: type[Exception] | None

    @classmethod
    def from_error(cls, error: Exception) -> CallFailure:
        family = None
        # a base class, if the class itself takes more than a text
        if isinstance(error, LockstepError | FloatingPointError):
            family = next(kind for kind in type(error).__mro__ if not isfunction(kind.__init__))
        return cls(
            type(error).__name__, str(error), "".join(traceback.format_exception(error)), family
        )


WireMessage = WorkerFactory | MethodCall | StreamItem | CallResult | CallFailure


GRACE_S = 2.0
"""Seconds for a worker to exit before it is killed."""

CLOSED = "this process ended it"
"""Description of a worker that `WorkerTransport.close` has ended."""


class WorkerTransport(Protocol):
    """The connection to one worker; starts and ends it.

    Messages arrive in the order they were sent.
    """

    def send_message(self, message: WireMessage, timeout_s: float) -> None:
        """Sends a message.

        Raises:
            TimeoutError: If the worker does not take it in time.
            OSError: If the worker is gone.
        """
        ...

    def receive_message(self, timeout_s: float) -> WireMessage:
        """Waits for the worker's next message.

        Raises:
            TimeoutError: If it does not come in time.
            EOFError, OSError: If the worker is gone.
        """
        ...

    def has_message(self, timeout_s: float) -> bool:
        """True if `receive_message` would not block: a message is there, or the worker is gone."""
        ...

    def is_alive(self) -> bool:
        """True while the worker runs."""
        ...

    def describe_ending(self) -> str:
        """Explains how the worker ended, for an error message."""
        ...

    def close(self, at_once: bool = False) -> None:
        """Ends the worker, after its current call unless `at_once`; safe to call again."""
        ...


def encode_message(message: WireMessage) -> list[memoryview]:
    """The pickle of a message and the bytes of its tensors, which are not copied."""
    buffers: list[pickle.PickleBuffer] = []
    stream = io.BytesIO()
    pickler = pickle.Pickler(stream, protocol=5, buffer_callback=buffers.append)
    pickler.dispatch_table = {**copyreg.dispatch_table, Tensor: _reduce_tensor}
    pickler.dump(message)
    return [stream.getbuffer(), *(buffer.raw() for buffer in buffers)]


def decode_message(frame: Sequence[bytearray]) -> Any:
    """Decodes the output of `encode_message`; tensors live in the frame's memory."""
    return pickle.loads(frame[0], buffers=frame[1:])


def _reduce_tensor(tensor: Tensor) -> tuple[Callable[..., Tensor], tuple[Any, ...]]:
    raw = tensor.detach().cpu().reshape(-1).view(torch.uint8)
    # Of the array and not of its memoryview: Python 3.11 crashes when it collects a memoryview of a
    # memoryview.
    array: Any = raw.numpy()
    return _rebuild_tensor, (pickle.PickleBuffer(array), tensor.dtype, tuple(tensor.shape))


def _rebuild_tensor(raw: bytearray, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    if not raw:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(raw, dtype=dtype).view(shape)


class SocketChannel:
    """Complete messages over a stream socket.

    A frame is the number of parts, their sizes in bytes, then the parts.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    def send_message(self, message: WireMessage, timeout_s: float | None = None) -> None:
        parts = encode_message(message)
        header = struct.pack(f"<I{len(parts)}Q", len(parts), *(part.nbytes for part in parts))
        deadline = _compute_deadline(timeout_s)
        for part in (header, *parts):
            self._socket.settimeout(_remaining_s(deadline))
            self._socket.sendall(part)

    def receive_message(self, timeout_s: float | None = None) -> WireMessage:
        return decode_message(self.receive_frame(timeout_s))

    def receive_frame(self, timeout_s: float | None = None) -> list[bytearray]:
        """The parts of the next message.

        Raises:
            EOFError: If the other side has closed.
        """
        deadline = _compute_deadline(timeout_s)
        (count,) = struct.unpack("<I", self._receive_exactly(4, deadline))
        sizes = struct.unpack(f"<{count}Q", self._receive_exactly(8 * count, deadline))
        return [self._receive_exactly(size, deadline) for size in sizes]

    def close(self) -> None:
        self._socket.close()

    def fileno(self) -> int:
        return self._socket.fileno()

    def _receive_exactly(self, size: int, deadline: float | None) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        filled = 0
        while filled < size:
            self._socket.settimeout(_remaining_s(deadline))
            received = self._socket.recv_into(view[filled:])
            if received == 0:
                raise EOFError("the other side closed the connection")
            filled += received
        return data


def _compute_deadline(timeout_s: float | None) -> float | None:
    if timeout_s is None:
        return None
    return time.monotonic() + timeout_s


def _remaining_s(deadline: float | None) -> float | None:
    """Seconds until the deadline; never 0, which would make the socket non-blocking."""
    if deadline is None:
        return None
    return max(deadline - time.monotonic(), 1e-4)


def take_threads(count: int) -> None:
    """Sets the number of threads of this worker and, by its environment, of its child processes."""
    torch.set_num_threads(count)
    os.environ["OMP_NUM_THREADS"] = str(count)


MessageFrame = Sequence[bytearray]
"""The parts of a message, by `encode_message`."""


def serve_calls(receive: Callable[[], MessageFrame], send: Callable[[WireMessage], None]) -> None:
    """A worker's main loop: builds its object, then answers calls until the other side closes.

    Raises:
        EOFError, ConnectionError: When the other side has closed.
    """
    frame = receive()
    try:
        target = decode_message(frame)()
        send(CallResult(None))
    except Exception as error:
        send(CallFailure.from_error(error))
        return
    while True:
        frame = receive()
        # The caller handles an error in a verb, and the worker continues; a broken connection ends
        # it just below.
        try:
            send(CallResult(_run_call(target, decode_message(frame), send)))
        except Exception as error:
            send(CallFailure.from_error(error))


def _run_call(target: Any, call: MethodCall, send: Callable[[WireMessage], None]) -> Any:
    """Runs one call. Sends the items of an iterator one by one."""
    result = getattr(target, call.verb)(*call.args, **call.keywords)
    if not isinstance(result, Iterator):
        return result
    for item in result:
        send(StreamItem(item))
    return None
