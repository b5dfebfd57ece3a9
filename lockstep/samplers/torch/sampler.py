"""The torch sampler: continuous batching over the learner's own weights, with a prefix cache."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from torch import Tensor
from transformers import PreTrainedModel

from lockstep.config import DType
from lockstep.core.batch import Batch
from lockstep.core.types import Request, SamplingParams
from lockstep.models.device import empty_cache
from lockstep.models.exact.model import is_exact
from lockstep.models.folder import count_cache_numbers
from lockstep.samplers.base import ResponsePiece, require_room
from lockstep.samplers.torch.continuous import ContinuousLayout, call_modules
from lockstep.samplers.torch.model_sampler import ModelSampler
from lockstep.samplers.torch.scheduler import BatchScheduler
from lockstep.samplers.torch.sequences import NotFinite, Response
from lockstep.weight_sync.attestation import WeightAttestation

_PIECE = 32
"""Minimum responses per piece while others are still running."""

_PASSES = 8
"""Maximum passes per `advance`; in 16 bits, each call casts the weights again."""


class TorchSampler(ModelSampler):
    """A `ModelSampler` with continuous batching, for models without recurrent state.

    While awake it has a prefix cache of earlier prompts and responses, so that the next turn of an
    episode, or the next vote on a prompt, computes only new tokens.

    Args:
        cache_bytes: Memory for the KV cache of running sequences; None: no limit.
        Others: As in `ModelSampler`.
    """

    def __init__(
        self,
        lm: PreTrainedModel,
        max_batch_size: int,
        dtype: DType = "fp32",
        cache_bytes: int | None = None,
    ) -> None:
        super().__init__(lm, max_batch_size, dtype)
        self._cache_bytes = cache_bytes
        self._scheduler: BatchScheduler | None = None
        self._awake = False
        self._submitted = dict[int, tuple[Request, SamplingParams]]()

    def pieces(
        self, requests: Sequence[Request], sampling: SamplingParams
    ) -> Iterator[ResponsePiece]:
        """See `samplers.base.Sampler`; prompts begin in order of length, shortest first."""
        require_room(requests, self._context)
        scheduler = self._open_scheduler()
        order = sorted(range(len(requests)), key=lambda i: len(requests[i].tokens))
        waiting = {scheduler.submit(requests[index], sampling): index for index in order}
        try:
            while waiting:
                with self._guard_autocast():
                    done = _run_until_finished(scheduler, waiting, _PIECE)
                indices = [waiting.pop(number) for number in done]
                answered = [requests[index] for index in indices]
                yield indices, self._assemble_batch(answered, list(done.values()), sampling)
        except NotFinite as broken:
            raise self._not_finite(requests, waiting[broken.number], broken.token) from None
        finally:
            for number in waiting:
                scheduler.abort(number)

    def submit(self, request: Request, sampling: SamplingParams) -> int:
        """See `samplers.base.ContinuousSampler`; only while awake."""
        assert self._awake, "a sampler wakes before it takes requests"
        require_room([request], self._context)
        number = self._open_scheduler().submit(request, sampling)
        self._submitted[number] = request, sampling
        return number

    def advance(self) -> Mapping[int, Batch]:
        scheduler = self._open_scheduler()
        try:
            with self._guard_autocast():
                done = _run_until_finished(scheduler, self._submitted, 1, _PASSES)
        except NotFinite as broken:
            request, _ = self._submitted[broken.number]
            self._submitted.clear()
            raise self._not_finite([request], 0, broken.token) from None
        found = dict[int, Batch]()
        for number, response in done.items():
            request, sampling = self._submitted.pop(number)
            found[number] = self._assemble_batch([request], [response], sampling)
        return found

    def abort(self, number: int) -> None:
        if self._submitted.pop(number, None) is not None:
            self._open_scheduler().abort(number)

    def load_weights(
        self, stream: Iterable[tuple[str, Tensor]], version: int
    ) -> Sequence[WeightAttestation]:
        self._scheduler = None
        return super().load_weights(stream, version)

    def attest(self, version: int) -> WeightAttestation:
        self._scheduler = None
        return super().attest(version)

    def wake(self) -> None:
        """Starts an empty prefix cache."""
        self._awake = True
        self._scheduler = None

    def sleep(self) -> None:
        """Frees all blocks."""
        self._awake = False
        self._scheduler = None
        empty_cache(self._lm.device)

    def _open_scheduler(self) -> BatchScheduler:
        """The scheduler for the current weights; while awake, the same one for all calls."""
        if self._scheduler is None or not self._awake:
            device = self._lm.device
            exact = is_exact(self._lm)
            max_cache_tokens = None
            if self._cache_bytes is not None:
                max_cache_tokens = self._cache_bytes // (4 * count_cache_numbers(self._lm.config))
            self._scheduler = BatchScheduler(
                self._compute_logits,
                self._max_batch_size,
                self._context,
                device,
                exact,
                max_cache_tokens,
                self._lm.config.name_or_path or "",
            )
        return self._scheduler

    def _compute_logits(
        self, token_N: Tensor, position_N: Tensor, layout: ContinuousLayout, keep_M: Tensor
    ) -> Tensor:
        """Logits [M, V] of a pass's tokens at indices `keep_M`."""
        return call_modules(self._lm, token_N, position_N, layout, keep_M)

    @contextmanager
    def _guard_autocast(self) -> Iterator[None]:
        """Computes in the sampler's type; after an error, drops the scheduler.

        Its KV blocks may be half written then.
        """
        try:
            with self._autocast_context():
                yield
        except BaseException:
            self._scheduler = None
            raise


def _run_until_finished(
    scheduler: BatchScheduler, numbers: Iterable[int], count: int, passes: int | None = None
) -> dict[int, Response]:
    """Makes passes, at most `passes`, until `count` of some requests have ended, or all of them.

    Returns their responses by number.
    """
    left = set(numbers)
    done = dict[int, Response]()
    most = scheduler.passes + passes if passes is not None else math.inf
    while left and len(done) < count and scheduler.passes < most:
        scheduler.step()
        for number in left & scheduler.finished.keys():
            done[number] = scheduler.finished.pop(number)
            left.remove(number)
    return done
