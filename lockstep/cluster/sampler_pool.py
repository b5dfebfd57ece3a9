"""A pool of samplers in processes of their own, which share the work; one that dies or hangs is restarted."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar, assert_never

from torch import Tensor

from lockstep.cluster.specs import SamplerSpec, require_sampler
from lockstep.cluster.transport import Item
from lockstep.cluster.worker_proxy import POLL_S, Pending, Remote, RemoteError, RemoteTimeout, WorkerDied, outcomes
from lockstep.cluster.workers import HERE, Workers
from lockstep.core.batch import Batch
from lockstep.core.borders import require_responses
from lockstep.core.errors import RunError
from lockstep.core.types import Request, SamplingParams
from lockstep.distributed.meeting import Host
from lockstep.report.progress import Progress
from lockstep.samplers.base import Piece, Sampler, gather_pieces, require_room
from lockstep.system.fault_policy import Attempts
from lockstep.weight_sync.attestation import Attestation
from lockstep.weight_sync.carriers import Route
from lockstep.weight_sync.outgoing import Outgoing, Sender
from lockstep.weight_sync.sender import LocalSender

T = TypeVar("T")
Block = tuple[int, Sequence[Request]]
"""A block's number, and its requests, which go to one sampler together."""


class SamplerLost(RunError):
    """Samplers died or hung more often than `sampler.max_restarts` allows."""


@dataclass(frozen=True)
class _Loaded:
    """The newest weights: their stream, their version, and the attestation of the first worker."""

    stream: Iterable[tuple[str, Tensor]]
    version: int
    attestation: Attestation


@dataclass
class _Work:
    """A block that a replica is working on, and the responses so far."""

    number: int
    requests: Sequence[Request]
    pieces: list[Piece] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    pending: Pending | None = None

    def ask(self, remote: Remote, sampling: SamplingParams) -> None:
        """Requests every response that is still missing."""
        done = {place for places, _ in self.pieces for place in places}
        self.asked = [place for place in range(len(self.requests)) if place not in done]
        self.pending = remote.submit("pieces", [self.requests[place] for place in self.asked], sampling)

    def advance(self) -> bool:
        """Takes the responses that have arrived. Returns True if the block is complete.

        Raises:
            WorkerDied, RemoteTimeout, RemoteError: As `Remote.call`.
        """
        assert self.pending is not None, "a block that was handed out has a call"
        while self.pending.is_done(POLL_S):
            message = self.pending.next_message()
            if not isinstance(message, Item):
                return True
            places, batch = message.value
            self.pieces.append(([self.asked[place] for place in places], batch))
        return False

    def wait(self) -> None:
        """Waits until the worker has finished the call, so that it can be used again."""
        if self.pending is not None:
            self.pending.drain()

    def leave(self) -> None:
        """Ends the worker if its call is still open."""
        if self.pending is not None and self.pending.open:
            self.pending.abandon()


class SamplerPool:
    """A pool of rollout workers with a sampler each; implements `samplers.base.Sampler`.

    Args:
        spec: Builds a worker's sampler.
        note: Shows the user a line.
        workers: Starts the worker processes.

    Raises:
        InputError: If weights cannot reach them by `sampler.transfer`.

    Attributes:
        dtype: See `Sampler`.
        remotes: The workers.
        restarts: Restarts of workers so far.
    """

    def __init__(self, spec: SamplerSpec, note: Callable[[str], object], workers: Workers = HERE) -> None:
        self._workers, self._spec, self._section = workers, spec, spec.section
        self._chosen = workers.choose_route(spec.section)
        self.dtype, self._context = spec.dtype, spec.context
        self._restarts = Attempts("sampler", note, spec.section.max_restarts)
        self._loaded: _Loaded | None = None
        self._abandoned = False
        self._sender = LocalSender()
        self._host: Host | None = None  # of the newest group: it lives as long
        self._route: Route | None = None  # that all workers have opened
        self.remotes = [
            workers.start(
                spec.build,
                f"sampler {number}",
                spec.section.timeout_s,
                place,
                of=spec.section.replicas,
                threads=spec.backend.threads,
            )
            for number, place in enumerate(workers.place_engines(spec.section, spec.learner), start=1)
        ]

    def ready(self) -> None:
        """Waits until every worker has built its sampler."""
        for remote in self.remotes:
            self._insist(remote.ready, [remote])

    def blocks(self, blocks: Iterable[Block], sampling: SamplingParams) -> Generator[tuple[int, Batch], None, None]:
        """Generates responses to blocks, each by one worker, so that bits do not depend on the number of workers.

        Responses that a worker finished before it died are kept; the restarted worker generates the rest.

        Yields:
            A block's number and its responses, in the order of its requests, as soon as it is whole.

        Raises:
            SamplerLost: If workers die too often.
            NotFiniteError: What a worker gave is not what was asked, or not finite.
        """
        waiting, idle, busy = iter(blocks), list(self.remotes), dict[Remote, _Work]()
        try:
            while True:
                while idle and (block := next(waiting, None)) is not None:
                    remote, work = idle.pop(), _Work(*block)
                    busy[remote] = work
                    self._insist(partial(work.ask, remote, sampling), [remote])
                if not busy:
                    return
                for remote in [remote for remote in busy if self._advance(remote, busy[remote], sampling)]:
                    work = busy.pop(remote)
                    idle.append(remote)
                    batch = gather_pieces(work.pieces)
                    require_responses(remote.name, batch, work.requests, sampling)
                    yield work.number, batch
        except RemoteError:
            for work in busy.values():
                work.wait()
            raise
        finally:
            for work in busy.values():
                work.leave()

    def pieces(self, requests: Sequence[Request], sampling: SamplingParams) -> Iterator[Piece]:
        """Generates responses; each worker gets every n-th request."""
        require_room(requests, self._context)
        count = len(self.remotes)
        shares = [range(first, len(requests), count) for first in range(min(count, len(requests)))]
        blocks = ((number, [requests[place] for place in share]) for number, share in enumerate(shares))
        for number, batch in self.blocks(blocks, sampling):
            yield shares[number], batch

    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> Batch:
        return gather_pieces(self.pieces(requests, sampling))

    def logprobs(self, batch: Batch) -> Tensor:
        """Log-probabilities, computed by the first worker."""
        return self._insist(lambda: self.remotes[0].call("logprobs", batch), self.remotes[:1])

    def logprobs_of_each(self, batch: Batch) -> Sequence[Tensor]:
        return self._insist(lambda: outcomes([one.submit("logprobs", batch) for one in self.remotes]), self.remotes)

    def show(self, name: str) -> Tensor:
        """Fetches a tensor as the first worker holds it."""
        return self._insist(lambda: self.remotes[0].call("show", name), self.remotes[:1])

    @property
    def restarts(self) -> int:
        return self._restarts.used

    @property
    def version(self) -> int | None:
        return None if self._loaded is None else self._loaded.version

    def load_weights(self, stream: Iterable[tuple[str, Tensor]], version: int) -> Sequence[Attestation]:
        """Sends all workers the same buckets; if one dies meanwhile, all get the weights again."""
        attestations = self._insist(lambda: self._load(self.remotes, stream, version), self.remotes, restored=False)
        self._loaded = _Loaded(stream, version, attestations[0])
        return attestations

    def wake(self) -> None:
        self._on_all("wake")

    def sleep(self) -> None:
        self._on_all("sleep")
        if self._spec.backend.forgets_weights(self._section):
            self._loaded = None

    def close(self) -> None:
        """Ends all workers; idle ones first close what they opened."""
        resting = [remote for remote in self.remotes if remote.alive() and not remote.pending.open]
        with contextlib.suppress(WorkerDied, RemoteTimeout, RemoteError):
            outcomes([remote.submit("close") for remote in resting])
        for remote in self.remotes:
            remote.close()

    def abandon(self) -> None:
        """Ends all workers at once; calls that another thread waits for then fail."""
        self._abandoned = True
        for remote in self.remotes:
            remote.close(at_once=True)

    def _on_all(self, verb: str) -> None:
        """Runs a verb on all workers; one that is restarted here has no weights until the next weight sync."""
        self._insist(lambda: outcomes([remote.submit(verb) for remote in self.remotes]), self.remotes, restored=False)

    def _load(
        self, remotes: Sequence[Remote], stream: Iterable[tuple[str, Tensor]], version: int
    ) -> Sequence[Attestation]:
        """Streams weights to some workers; a bucket is filled while they read the previous one."""
        outgoing, calls = Outgoing.of(stream), list[Pending]()
        sender = self._sender if outgoing.sender is None else outgoing.sender
        chosen = self._chosen if outgoing.on_gpu else self._chosen.from_host(self._workers.one_machine)
        self._let_join(sender, remotes, chosen)
        buckets = sender.buckets(outgoing, self._spec.backend.packs(self._spec.learner))
        with contextlib.closing(buckets):
            for bucket in buckets:
                outcomes(calls)
                calls = [remote.submit("receive", bucket) for remote in remotes]
                _blaming(calls, partial(sender.ship, bucket))
        outcomes(calls)
        sender.finish()
        return outcomes([remote.submit("attest", version) for remote in remotes])

    def _let_join(self, sender: LocalSender | Sender, remotes: Sequence[Remote], chosen: Route) -> None:
        """Opens a route like the chosen one at a sender and some workers, unless all have one open already."""
        everyone, width = len(remotes) == len(self.remotes), self._section.tensor_parallel
        if everyone and self._route is not None and self._route == sender.route and chosen.is_like(self._route):
            return
        match chosen.transfer:
            case "shared_memory":
                route = replace(chosen, places=sender.places)
            case "process_group":
                self._host = Host(self._workers.address, 1 + len(remotes) * width, self._section.timeout_s)
                route = replace(chosen, meeting=self._host.meeting)
            case "cuda_ipc":
                route = chosen
            case _:
                assert_never(chosen.transfer)
        calls = [remote.submit("join", route.of(1 + number * width)) for number, remote in enumerate(remotes)]
        _blaming(calls, partial(sender.join, route))
        outcomes(calls)
        self._route = route if everyone else None

    def _insist(self, action: Callable[[], T], remotes: Sequence[Remote], restored: bool = True) -> T:
        """Retries an action with workers, restarting those that die during it.

        Args:
            action: The action.
            remotes: The workers that it uses.
            restored: True if a restarted worker gets the others' weights; otherwise all count as holding none.
        """
        while True:
            try:
                return action()
            except (WorkerDied, RemoteTimeout) as error:
                dead = [remote for remote in remotes if not remote.alive()]
                if not dead:  # it was a learner, whose weights were being sent
                    raise
                self._loaded = self._loaded if restored else None
                self._count(error)
                for remote in dead:
                    self._start_again(remote)

    def _advance(self, remote: Remote, work: _Work, sampling: SamplingParams) -> bool:
        """Takes what a worker has sent; restarts it if it died. Returns True if its block is complete."""
        try:
            return work.advance()
        except (WorkerDied, RemoteTimeout) as error:
            self._count(error)
            self._start_again(remote)
            self._insist(partial(work.ask, remote, sampling), [remote])
            return False

    def _count(self, error: Exception) -> None:
        """Counts a restart, and tells the user.

        Raises:
            SamplerLost: If there were too many.
        """
        if self._abandoned:
            raise SamplerLost(f"{error}; it is not started again, since no one waits for it any more") from error
        if not self._restarts.again(str(error)):
            most = self._restarts.limit
            raise SamplerLost(f"{error}; it is not started again, since sampler.max_restarts={most}") from error

    def _start_again(self, remote: Remote) -> None:
        """Restarts a worker, and sends it the weights that the others hold, if they hold any."""
        self._route = None
        remote.restart()
        if self._abandoned:  # meanwhile
            remote.close(at_once=True)
        self._insist(partial(self._restore, remote), [remote])

    def _restore(self, remote: Remote) -> None:
        remote.ready()
        if self._loaded is None:
            return
        (attestation,) = self._load([remote], self._loaded.stream, self._loaded.version)
        if attestation != self._loaded.attestation:
            raise SamplerLost(f"worker {remote.name} was started again, and does not hold the weights that it was sent")


def _blaming(calls: Sequence[Pending], action: Callable[[], T]) -> T:
    """Does the sender's part of a collective; if that fails, raises the receivers' error instead, which says more."""
    try:
        return action()
    except (WorkerDied, RemoteTimeout):  # of the process that sends
        raise
    except RuntimeError:
        outcomes(calls)
        raise


def nearest(spec: SamplerSpec, progress: Progress, workers: Workers) -> Sampler:
    """A sampler in this process if that is possible, otherwise in processes of its own."""
    if workers.here and spec.section.in_process and not workers.engines_apart:
        spec.require_proof()
        return spec.open_here()
    return processes(spec, progress, workers)


def processes(spec: SamplerSpec, progress: Progress, workers: Workers) -> SamplerPool:
    """Starts the rollout workers of a run, all at once, and waits until they are ready; they end with the run."""
    require_sampler(spec.section, spec.learner)
    spec.require_proof()
    started = SamplerPool(spec, progress.note, workers)
    workers.callback(started.close)
    with progress.phase("start samplers"):
        started.ready()
    return started
