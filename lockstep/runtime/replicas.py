"""Samplers in processes of their own: they share the work, and one that dies or hangs is started again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from lockstep.batch import Batch
from lockstep.recipe import SamplerSection
from lockstep.runtime.remote import Pending, Remote, RemoteSampler, RemoteTimeout, WorkerDied, spawned
from lockstep.runtime.transport import Factory, Item
from lockstep.samplers.base import Piece, gathered
from lockstep.types import Request, SamplingParams

_POLL_S = 0.002

Block = tuple[int, Sequence[Request]]
"""Requests that go to one sampler together, and the block's number."""


class SamplerLost(RuntimeError):
    """A sampler died, or hung, more often than is allowed."""


@dataclass
class _Work:
    """A block that a replica has been given, and what has come back of it."""

    number: int
    requests: Sequence[Request]
    pieces: list[Piece] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    pending: Pending | None = None

    def ask(self, remote: Remote, sampling: SamplingParams) -> None:
        """Asks for all that is missing."""
        there = {place for places, _ in self.pieces for place in places}
        self.asked = [place for place in range(len(self.requests)) if place not in there]
        self.pending = remote.submit("pieces", [self.requests[place] for place in self.asked], sampling)

    def advance(self) -> bool:
        """Takes what has come. Returns whether the block is whole.

        Raises:
            WorkerDied, RemoteTimeout, RemoteError: As `Remote.call`.
        """
        assert self.pending is not None, "work that was given out is under way"
        while self.pending.done(_POLL_S):
            message = self.pending.next_message()
            if not isinstance(message, Item):
                return True
            places, batch = message.value
            self.pieces.append(([self.asked[place] for place in places], batch))
        return False


def replicas(
    spec: Factory,
    section: SamplerSection,
    note: Callable[[str], object],
    restarted: Callable[[RemoteSampler], object] = lambda sampler: None,
) -> Replicas:
    """Starts as many workers as the section says, each with one thread: more would make bits depend on their number.

    Args:
        spec: Builds a worker's sampler.
        section: How many, and how patient to be with them.
        note: As of `Replicas`.
        restarted: As of `Replicas`.
    """
    remotes = [spawned(spec, f"sampler {i + 1}", section.timeout_s, threads=1) for i in range(section.replicas)]
    return Replicas(remotes, section.max_restarts, note, restarted)


class Replicas:
    """Workers that hold a sampler each.

    Args:
        remotes: The workers.
        max_restarts: How often, all in all, one of them may be started again.
        note: Tells the user what happens.
        restarted: Called with a worker that was started again, before it gets work: brings it to the others' state.
    """

    def __init__(
        self,
        remotes: Sequence[Remote],
        max_restarts: int,
        note: Callable[[str], object],
        restarted: Callable[[RemoteSampler], object] = lambda sampler: None,
    ) -> None:
        self.remotes = list(remotes)
        self.restarts = 0
        self._max_restarts, self._note, self._restarted = max_restarts, note, restarted

    def ready(self) -> None:
        """Waits until every worker has built its sampler."""
        for remote in self.remotes:
            self._attempt(remote, remote.ready)

    def blocks(self, blocks: Iterable[Block], sampling: SamplingParams) -> Iterator[tuple[int, Batch]]:
        """Answers blocks, each whole by one worker, so that bits do not depend on how many workers there are.

        What a worker had finished before it died is kept; the one that takes its place answers the rest.

        Yields:
            A block's number and its responses, in the order of its requests, as soon as it is whole.

        Raises:
            SamplerLost: If workers die too often.
        """
        waiting, idle, busy = iter(blocks), list(self.remotes), dict[Remote, _Work]()
        try:
            while True:
                while idle and (block := next(waiting, None)) is not None:
                    busy[remote := idle.pop()] = work = _Work(*block)
                    self._attempt(remote, partial(work.ask, remote, sampling))
                if not busy:
                    return
                for remote in [remote for remote in busy if self._advanced(remote, busy[remote], sampling)]:
                    work = busy.pop(remote)
                    idle.append(remote)
                    yield work.number, gathered(work.pieces)
        finally:
            for work in busy.values():
                if work.pending is not None and work.pending.open:
                    work.pending.abandon()

    def close(self) -> None:
        """Ends all workers."""
        for remote in self.remotes:
            remote.close()

    def _advanced(self, remote: Remote, work: _Work, sampling: SamplingParams) -> bool:
        """Whether a block is whole now; one whose worker died is asked for again."""
        try:
            return work.advance()
        except (WorkerDied, RemoteTimeout) as error:
            self._revive(remote, error)
            self._attempt(remote, partial(work.ask, remote, sampling))
            return False

    def _attempt(self, remote: Remote, action: Callable[[], object]) -> None:
        """Does something with a worker, again and again where that dies over it."""
        while True:
            try:
                action()
                return
            except (WorkerDied, RemoteTimeout) as error:
                self._revive(remote, error)

    def _revive(self, remote: Remote, error: Exception) -> None:
        """Starts a worker again.

        Raises:
            SamplerLost: If that was done too often.
        """
        if self.restarts == self._max_restarts:
            raise SamplerLost(
                f"{error}; it is not started again, since sampler.max_restarts={self._max_restarts}"
            ) from error
        self.restarts += 1
        self._note(f"{error}; starting it again ({self.restarts} of {self._max_restarts} times)")
        remote.restart()
        self._attempt(remote, partial(self._restarted, RemoteSampler(remote)))
