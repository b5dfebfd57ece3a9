"""An adapter for samplers that finish a batch before the next one."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from itertools import count

from lockstep.core.batch import Batch
from lockstep.core.types import Request, SamplingParams
from lockstep.samplers.base import ResponsePiece, Sampler


class GatheredSampler:
    """Gives a `Sampler` the methods of a `ContinuousSampler`: requests wait for the next batch.

    A batch has all waiting requests with the distribution of the one that waits longest.
    """

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._numbers = count()
        self._waiting = dict[int, tuple[Request, SamplingParams]]()
        self._batch = list[int]()
        self._running = set[int]()
        self._pieces: Iterator[ResponsePiece] | None = None

    @property
    def version(self) -> int | None:
        return self._sampler.version

    def submit(self, request: Request, sampling: SamplingParams) -> int:
        number = next(self._numbers)
        self._waiting[number] = request, sampling
        return number

    def advance(self) -> Mapping[int, Batch]:
        """Waits for the next responses of the current batch; begins one if none runs."""
        if self._pieces is None and self._waiting:
            self._begin_batch()
        if self._pieces is None:
            return {}
        piece = next(self._pieces, None)
        if piece is None:
            self._pieces = None
            return {}
        indices, batch = piece
        done = {self._batch[index]: batch.select([row]) for row, index in enumerate(indices)}
        self._running -= done.keys()
        return done

    def abort(self, number: int) -> None:
        """Removes a waiting request; one in the current batch ends with the batch."""
        self._waiting.pop(number, None)
        self._running.discard(number)
        if not self._running and self._pieces is not None:
            deque(self._pieces, maxlen=0)
            self._pieces = None

    def _begin_batch(self) -> None:
        _, sampling = next(iter(self._waiting.values()))
        alike = {number: one for number, (one, own) in self._waiting.items() if own == sampling}
        for number in alike:
            del self._waiting[number]
        self._batch = list(alike)
        self._running = set(alike)
        self._pieces = iter(self._sampler.pieces(list(alike.values()), sampling))
