"""A pool of samplers in separate processes, which share the work."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar, assert_never

from torch import Tensor

from lockstep.cluster.specs import SamplerSpec, require_sampler
from lockstep.cluster.transport import StreamItem
from lockstep.cluster.worker_proxy import (
    POLL_S,
    PendingCall,
    WorkerDied,
    WorkerProxy,
    wait_for_calls,
)
from lockstep.cluster.workers import HERE, WorkerPool
from lockstep.core.batch import Batch
from lockstep.core.borders import require_responses
from lockstep.core.types import Request, SamplingParams
from lockstep.distributed.meeting import RendezvousHost
from lockstep.report.progress import RunProgress
from lockstep.samplers.base import ResponsePiece, Sampler, gather_pieces, require_room
from lockstep.weight_sync.attestation import WeightAttestation
from lockstep.weight_sync.carriers import TransferRoute
from lockstep.weight_sync.outgoing import OutgoingWeights, WeightSender
from lockstep.weight_sync.sender import LocalSender

T = TypeVar("T")
RequestBlock = tuple[int, Sequence[Request]]
"""The number of a block of requests, and the requests; one sampler gets all of them."""


class SamplerLost(WorkerDied):
    """A sampler died or hung; learners have not changed since it was called."""


@dataclass(frozen=True)
class _ActiveBlock:
    """A worker's current block, its call, and the responses so far."""

    number: int
    requests: Sequence[Request]
    pending: PendingCall
    pieces: list[ResponsePiece] = field(default_factory=list)

    def collect_arrived(self) -> bool:
        """Collects the responses that have arrived. Returns True if the block is complete.

        Raises:
            Exception: As `WorkerProxy.call`.
        """
        while self.pending.is_done(POLL_S):
            message = self.pending.next_message()
            if not isinstance(message, StreamItem):
                return True
            self.pieces.append(message.value)
        return False


class SamplerPool:
    """A pool of rollout workers with one sampler each; implements `samplers.base.Sampler`.

    Args:
        spec: Spec of a worker's sampler.
        workers: Starts the worker processes.

    Raises:
        InputError: If `sampler.transfer` cannot reach them.

    Attributes:
        dtype, version: See `Sampler`.
        remotes: The workers.
    """

    def __init__(self, spec: SamplerSpec, workers: WorkerPool = HERE) -> None:
        self._workers = workers
        self._spec = spec
        self._section = spec.section
        self._chosen = workers.choose_route(spec.section)
        self.dtype = spec.dtype
        self._context = spec.context_tokens
        self.version: int | None = None
        self._sender = LocalSender()
        self._host: RendezvousHost | None = None  # of the newest group, which lives as long
        self._route: TransferRoute | None = None  # opened by all workers
        self.remotes = list[WorkerProxy]()
        places = workers.place_engines(spec.section, spec.learner)
        for number, place in enumerate(places, start=1):
            remote = workers.start_worker(
                spec.build,
                f"sampler {number}",
                spec.section.timeout_s,
                place,
                of=spec.section.replicas,
                threads=spec.backend.threads,
            )
            self.remotes.append(remote)

    def wait_until_ready(self) -> None:
        """Waits until every worker has built its sampler."""
        with self._translate_deaths():
            for remote in self.remotes:
                remote.wait_until_ready()

    def generate_blocks(
        self, blocks: Iterable[RequestBlock], sampling: SamplingParams
    ) -> Generator[tuple[int, Batch], None, None]:
        """Generates responses to blocks, each by one worker, so bits do not depend on their number.

        Yields:
            A block's number and its responses, in the order of its requests, when complete.

        Raises:
            SamplerLost: A worker died or hung.
            NotFiniteError: A worker's responses do not match the requests, or are not finite.
        """
        busy = dict[WorkerProxy, _ActiveBlock]()
        try:
            with self._translate_deaths():
                yield from self._assign_blocks(iter(blocks), busy, sampling)
        except WorkerDied:
            raise
        except Exception:
            for work in busy.values():
                work.pending.discard_rest()
            raise
        finally:
            for work in busy.values():
                if work.pending.open:
                    work.pending.end_worker()

    def _assign_blocks(
        self,
        waiting: Iterator[RequestBlock],
        busy: dict[WorkerProxy, _ActiveBlock],
        sampling: SamplingParams,
    ) -> Iterator[tuple[int, Batch]]:
        """Gives each idle worker the next block until all are done; `busy`: current blocks."""
        idle = list(self.remotes)
        while True:
            while idle and (block := next(waiting, None)) is not None:
                remote = idle.pop()
                busy[remote] = _ActiveBlock(*block, remote.submit("pieces", block[1], sampling))
            if not busy:
                return
            for remote in [remote for remote, work in busy.items() if work.collect_arrived()]:
                work = busy.pop(remote)
                idle.append(remote)
                batch = gather_pieces(work.pieces)
                require_responses(remote.name, batch, work.requests, sampling)
                yield work.number, batch

    def pieces(
        self, requests: Sequence[Request], sampling: SamplingParams
    ) -> Iterator[ResponsePiece]:
        """Generates responses; each of n workers gets every n-th request."""
        require_room(requests, self._context)
        count = len(self.remotes)
        shares = [range(first, len(requests), count) for first in range(min(count, len(requests)))]
        blocks = list[RequestBlock]()
        for number, share in enumerate(shares):
            blocks.append((number, [requests[index] for index in share]))
        for number, batch in self.generate_blocks(blocks, sampling):
            yield shares[number], batch

    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> Batch:
        return gather_pieces(self.pieces(requests, sampling))

    def logprobs(self, batch: Batch) -> Tensor:
        """Log-probabilities, by the first worker."""
        with self._translate_deaths():
            return self.remotes[0].call("logprobs", batch)

    def logprobs_of_each(self, batch: Batch) -> Sequence[Tensor]:
        return self._call_all("logprobs", batch)

    def show(self, name: str) -> Tensor:
        """Fetches a tensor from the first worker."""
        with self._translate_deaths():
            return self.remotes[0].call("show", name)

    def load_weights(
        self, stream: Iterable[tuple[str, Tensor]], version: int
    ) -> Sequence[WeightAttestation]:
        """Sends all workers the same buckets; fills one while they read the previous."""
        self.version = None
        outgoing = OutgoingWeights.wrap_stream(stream)
        calls = list[PendingCall]()
        sender = self._sender if outgoing.sender is None else outgoing.sender
        if outgoing.on_gpu:
            chosen = self._chosen
        else:
            chosen = self._chosen.for_host_weights(self._workers.one_machine)
        with self._translate_deaths():
            self._open_routes(sender, chosen)
            buckets = sender.fill_buckets(
                outgoing, self._spec.backend.packs_weights(self._spec.learner)
            )
            with contextlib.closing(buckets):
                for bucket in buckets:
                    wait_for_calls(calls)
                    calls = [remote.submit("receive", bucket) for remote in self.remotes]
                    _run_blaming_receivers(calls, partial(sender.ship_bucket, bucket))
            wait_for_calls(calls)
            sender.free_buckets()
            attestations = self._call_all("attest", version)
        self.version = version
        return attestations

    def wake(self) -> None:
        self._call_all("wake")

    def sleep(self) -> None:
        self._call_all("sleep")
        if self._spec.backend.forgets_weights(self._section):
            self.version = None

    def close(self) -> None:
        """Ends all workers; idle ones first close what they opened."""
        resting = [
            remote for remote in self.remotes if remote.is_alive() and not remote.pending.open
        ]
        with contextlib.suppress(Exception):
            wait_for_calls([remote.submit("close") for remote in resting])
        for remote in self.remotes:
            remote.close()

    def end_workers(self) -> None:
        """Ends all workers immediately; pending calls in other threads fail."""
        for remote in self.remotes:
            remote.close(at_once=True)

    def _call_all(self, verb: str, *args: Any) -> list[Any]:
        """Calls a method on all workers at the same time."""
        with self._translate_deaths():
            return wait_for_calls([remote.submit(verb, *args) for remote in self.remotes])

    def _open_routes(self, sender: LocalSender | WeightSender, chosen: TransferRoute) -> None:
        """Opens the chosen kind of route at a sender and all workers, unless already open."""
        width = self._section.tensor_parallel
        if (
            self._route is not None
            and self._route == sender.route
            and chosen.has_same_carrier(self._route)
        ):
            return
        match chosen.transfer:
            case "shared_memory":
                route = replace(chosen, paths=sender.file_paths)
            case "process_group":
                count = 1 + len(self.remotes) * width
                self._host = RendezvousHost(self._workers.address, count, self._section.timeout_s)
                route = replace(chosen, meeting=self._host.meeting)
            case "cuda_ipc":
                route = chosen
            case _:
                assert_never(chosen.transfer)
        calls: list[PendingCall] = []
        for number, remote in enumerate(self.remotes):
            calls.append(remote.submit("join", route.for_rank(1 + number * width)))
        _run_blaming_receivers(calls, partial(sender.open_route, route))
        wait_for_calls(calls)
        self._route = route

    @contextlib.contextmanager
    def _translate_deaths(self) -> Iterator[None]:
        """Raises a worker's death as `SamplerLost`; a sending learner's death passes unchanged."""
        try:
            yield
        except WorkerDied as error:
            if all(remote.is_alive() for remote in self.remotes):
                raise
            raise SamplerLost(str(error)) from error


def _run_blaming_receivers(calls: Sequence[PendingCall], action: Callable[[], T]) -> T:
    """Does the sender's part of a collective.

    If that fails, raises the receivers' error instead, which says more.
    """
    try:
        return action()
    except WorkerDied:  # of the sending process
        raise
    except Exception:
        wait_for_calls(calls)
        raise


def open_nearest_sampler(spec: SamplerSpec, progress: RunProgress, workers: WorkerPool) -> Sampler:
    """A sampler, in this process if possible, otherwise in separate processes."""
    if workers.is_local and spec.section.in_process and not workers.engines_apart:
        spec.require_proof()
        return spec.open_in_process()
    return start_sampler_pool(spec, progress, workers)


def start_sampler_pool(
    spec: SamplerSpec, progress: RunProgress, workers: WorkerPool
) -> SamplerPool:
    """Starts a run's rollout workers together, and waits until they are ready.

    They end with the run.
    """
    require_sampler(spec.section, spec.learner)
    spec.require_proof()
    started = SamplerPool(spec, workers)
    workers.callback(started.close)
    with progress.phase("start samplers"):
        started.wait_until_ready()
    return started
