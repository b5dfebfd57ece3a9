"""The engine: one thread that runs the sampler for all requests.

Everything that touches the sampler runs in this thread, in order: other threads post calls to it.
While the sampler generates, new requests join the running ones.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Literal, TypeVar, assert_never

from lockstep.core.batch import Batch
from lockstep.core.borders import require_responses
from lockstep.core.errors import RunError, first_line
from lockstep.core.types import Request, SamplingParams
from lockstep.samplers.base import ContinuousSampler, Sampler
from lockstep.serve.gathered import GatheredSampler

T = TypeVar("T")
PauseMode = Literal["abort", "wait", "keep"]
"""Effect of a pause on open responses: end them, wait for them, or let them begin anew later."""


class ResponseAborted(RunError):
    """A response was ended before it was complete."""


class EngineStopped(RunError):
    """The engine has stopped, so no request gets a response."""


@dataclass(eq=False)
class PendingResponse:
    """A request and its response to be.

    Attributes:
        request_id: Id of the client's request, which can be for several responses.
        number: Its number in the sampler; None while it waits.
    """

    request: Request
    sampling: SamplingParams
    request_id: str
    future: Future[Batch] = field(default_factory=Future[Batch])
    number: int | None = None


class ServingEngine:
    """Runs a sampler that is awake, from `start` to `close`.

    Args:
        sampler: The sampler; nothing else uses it while the engine is not paused.

    Attributes:
        paused: True while no response may be generated.
        failure: The error that ended all responses, if one did.
    """

    def __init__(self, sampler: Sampler) -> None:
        if isinstance(sampler, ContinuousSampler):
            self._sampler = sampler
        else:
            self._sampler = GatheredSampler(sampler)
        self._calls = SimpleQueue[Callable[[], object]]()
        self._open = dict[PendingResponse, None]()
        self._running = dict[int, PendingResponse]()
        self._pausing = list[Future[None]]()
        self._stopped: EngineStopped | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="policy engine", daemon=True)
        self.paused = False
        self.failure: BaseException | None = None

    @property
    def weight_version(self) -> int:
        """Version of the sampler's weights."""
        return self._sampler.version or 0

    @property
    def open_count(self) -> int:
        """Number of requests without a response."""
        return len(self._open)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Ends open responses with an error, and the thread."""
        self._calls.put(self._close)
        self._thread.join()

    def stop(self, error: Exception) -> None:
        """Ends all responses, open and later ones, because of an error outside the engine."""
        self._calls.put(partial(self._fail_all, error))

    def submit(self, request: Request, sampling: SamplingParams, request_id: str) -> Future[Batch]:
        """Requests a response, a batch of one; if its future is cancelled, it ends.

        The future's exception is an `EngineStopped` or a `ResponseAborted`, or says why the prompt
        cannot be read.
        """
        pending = PendingResponse(request, sampling, request_id)
        self._open[pending] = None
        pending.future.add_done_callback(lambda _: self._calls.put(partial(self._drop, pending)))
        self._calls.put(partial(self._admit, pending))
        return pending.future

    def call(self, function: Callable[[], T]) -> Future[T]:
        """Runs a function in the thread, between two passes of the sampler."""
        future = Future[T]()
        self._calls.put(partial(self._answer_call, future, function))
        return future

    def pause(self, mode: PauseMode) -> Future[None]:
        """Stops generating; the future is done once the sampler rests."""
        future = Future[None]()
        self._calls.put(partial(self._pause, mode, future))
        return future

    def resume(self) -> Future[None]:
        """Generates again; requests that waited begin now."""
        return self.call(self._resume)

    def abort(self, request_ids: Collection[str]) -> Future[int]:
        """Ends the open responses to some requests; without ids, all. Returns their number."""
        return self.call(partial(self._abort, request_ids))

    def _run(self) -> None:
        while not self._closed:
            if not self._running:
                self._calls.get()()
            while not self._calls.empty():
                self._calls.get()()
            if self._running:
                self._advance()

    def _advance(self) -> None:
        try:
            for number, batch in self._sampler.advance().items():
                if number in self._running:  # else it was dropped
                    pending = self._running.pop(number)
                    require_responses("the sampler", batch, [pending.request], pending.sampling)
                    self._finish(pending, batch)
        except Exception as error:  # of any engine
            self._fail_all(error)
        self._report_rest()

    def _admit(self, pending: PendingResponse) -> None:
        if self._stopped is not None:
            self._fail(pending, self._stopped)
        if self.paused or self._pausing or pending.future.done():
            return
        try:
            pending.number = self._sampler.submit(pending.request, pending.sampling)
        except ValueError as error:
            self._fail(pending, error)
        else:
            self._running[pending.number] = pending

    def _drop(self, pending: PendingResponse) -> None:
        """Forgets a response that is done; ends one that was cancelled."""
        self._open.pop(pending, None)
        if pending.number in self._running:
            del self._running[pending.number]
            self._sampler.abort(pending.number)
            self._report_rest()

    def _finish(self, pending: PendingResponse, batch: Batch) -> None:
        with suppress(InvalidStateError):  # cancelled in the meantime
            pending.future.set_result(batch)

    def _fail(self, pending: PendingResponse, error: Exception) -> None:
        with suppress(InvalidStateError):
            pending.future.set_exception(error)

    def _pause(self, mode: PauseMode, future: Future[None]) -> None:
        self._pausing.append(future)
        match mode:
            case "abort":
                self._abort(())
            case "wait":
                pass
            case "keep":
                for number, pending in self._running.items():
                    self._sampler.abort(number)
                    pending.number = None
                self._running.clear()
            case _:
                assert_never(mode)
        self._report_rest()

    def _report_rest(self) -> None:
        """Ends pausing once nothing runs."""
        if self._running or not self._pausing:
            return
        self.paused = True
        for future in self._pausing:
            future.set_result(None)
        self._pausing.clear()

    def _resume(self) -> None:
        self.paused = False
        for future in self._pausing:  # while responses still ran
            future.cancel()
        self._pausing.clear()
        for pending in list(self._open):
            if pending.number is None:
                self._admit(pending)

    def _abort(self, request_ids: Collection[str]) -> int:
        ended = list(self._open)
        if request_ids:
            ended = [pending for pending in self._open if pending.request_id in request_ids]
        for pending in ended:
            self._fail(pending, ResponseAborted("the response was aborted"))
            self._drop(pending)
        return len(ended)

    def _close(self) -> None:
        self._stop(EngineStopped("the server is shutting down"))
        self._closed = True

    def _fail_all(self, error: Exception) -> None:
        self.failure = self.failure or error
        self._stop(EngineStopped(f"the server stopped ({first_line(error)}); restart it"))

    def _stop(self, error: EngineStopped) -> None:
        self._stopped = error
        self._running.clear()
        for pending in list(self._open):
            self._fail(pending, error)

    def _answer_call(self, future: Future[T], function: Callable[[], T]) -> None:
        try:
            future.set_result(function())
        except Exception as error:
            future.set_exception(error)
