"""The session around generation: wake, weight sync, generate, sleep. All generation for a learner is inside one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

from lockstep.batch import Batch
from lockstep.borders import require_responses
from lockstep.learners.base import Learner
from lockstep.metrics import Metrics
from lockstep.samplers.base import Sampler
from lockstep.types import Phase, Request, SamplingParams, skip_timing
from lockstep.weight_sync.sync import Snapshot, WeightSource, sync_weights


class SamplerSession:
    """A sampler that is awake, with weights of a known version, only inside a `with` block.

    Args:
        sampler: The sampler.
        learner: Its weights are synced; None: the sampler keeps its own.
        probe: See `sync_weights`.
        phase: Times the weight sync.
    """

    def __init__(
        self, sampler: Sampler, learner: Learner | None = None, probe: Batch | None = None, phase: Phase = skip_timing
    ) -> None:
        self._sampler, self._learner, self._probe, self._phase = sampler, learner, probe, phase
        self._attested: tuple[WeightSource, int] | None = None
        self._record = Metrics()
        self._open = False

    @contextmanager
    def at(self, version: int = 0, snapshot: Snapshot | None = None) -> Iterator[Metrics]:
        """Opens the session, with a weight sync if the sampler holds another version of the weights.

        Args:
            version: Version of the weights.
            snapshot: Source of the weights, if the learner may change before the session ends, or has changed.

        Yields:
            The metrics of the newest weight sync.

        Raises:
            RuntimeError: If the session is open.
            WeightSyncError: If the weights did not arrive.
        """
        if self._open:
            raise RuntimeError("the bracket around the sampler is open already; brackets do not nest")
        self._open = True
        try:
            self._sampler.wake()
            source = snapshot or self._learner
            if source is not None and not (self._sampler.version == version and self._attested == (source, version)):
                self._sync_weights(source, version)
            yield self._record
            self._sampler.sleep()  # not after an error, which matters more
        finally:
            self._open = False

    def snapshot(self, version: int) -> Snapshot:
        """Copies the learner's current weights, which are of this version.

        Raises:
            RuntimeError: If there is no learner.
        """
        if self._learner is None:
            raise RuntimeError("there are no weights to copy; the sampler keeps those that it began with")
        return Snapshot.of(self._learner, version, self._sampler.dtype, self._probe)

    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> Batch:
        """Generates, see `Sampler.generate`.

        Raises:
            RuntimeError: Outside the session.
            NotFiniteError: What the sampler gave is not what was asked, or not finite.
        """
        self._require_open()
        batch = self._sampler.generate(requests, sampling)
        version = self._sampler.version
        whose = "the sampler" if version is None else f"the sampler with the weights of step {version}"
        require_responses(whose, batch, requests, sampling)
        return batch

    def logprobs(self, batch: Batch) -> Tensor:
        """Scores, see `Sampler.logprobs`.

        Raises:
            RuntimeError: Outside the session.
        """
        self._require_open()
        return self._sampler.logprobs(batch)

    def send_again(self) -> None:
        """Repeats the weight sync, with the weights and the version that the sampler has.

        Raises:
            RuntimeError: Outside the session, or without a weight sync before.
            WeightSyncError: If the weights did not arrive.
        """
        self._require_open()
        if self._attested is None:
            raise RuntimeError("there are no weights to send again; the sampler keeps those that it began with")
        self._sync_weights(*self._attested)

    def _sync_weights(self, source: WeightSource, version: int) -> None:
        self._attested = None
        with self._phase("refit"):
            self._record = sync_weights(source, self._sampler, version, self._probe)
        self._attested = source, version

    def _require_open(self) -> None:
        if not self._open:
            raise RuntimeError("a sampler is asked inside of the bracket only: with engine.at(version)")
