"""The session for generation: wake, weight sync, generate, sleep.

All generation for a learner runs inside a session.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

from lockstep.core.batch import Batch
from lockstep.core.borders import require_responses
from lockstep.core.metrics import Metrics
from lockstep.core.types import PhaseTimer, Request, SamplingParams, skip_timing
from lockstep.learners.base import Learner
from lockstep.samplers.base import Sampler
from lockstep.weight_sync.sync import SyncProbe, WeightSnapshot, WeightSource, sync_weights

PROBE_EVERY = 10
"""Number of weight versions between probes; a probe takes 7 % of a toy's .34 CPU s per step."""


class SamplerSession:
    """A sampler that is awake, at a known weight version, only inside a `with` block.

    Args:
        sampler: The sampler.
        learner: The learner whose weights are synced; None: the sampler keeps its own.
        probe: Batch scored at the first weight sync, at every `PROBE_EVERY`-th version, and always
            if an engine has tensors that cannot be read back completely; None: never.
        phase: Times the weight sync.
    """

    def __init__(
        self,
        sampler: Sampler,
        learner: Learner | None = None,
        probe: SyncProbe | None = None,
        phase: PhaseTimer = skip_timing,
    ) -> None:
        self._sampler = sampler
        self._learner = learner
        self._probe = probe
        self._phase = phase
        self._attested: tuple[WeightSource, int] | None = None
        self._record = Metrics()
        self._open = False
        self._is_proven = False
        self._reads_all = True

    @contextmanager
    def at(self, version: int = 0, snapshot: WeightSnapshot | None = None) -> Iterator[Metrics]:
        """Opens the session, with a weight sync if the sampler has a different version.

        Args:
            version: Version of the weights.
            snapshot: Source of the weights, if the learner may change before the session ends, or
                has changed.

        Yields:
            The metrics of the latest weight sync.

        Raises:
            RuntimeError: If the session is open.
            WeightSyncError: If the weights did not arrive.
        """
        if self._open:
            raise RuntimeError("the sampler session is already open; sessions do not nest")
        self._open = True
        try:
            source = snapshot or self._learner
            if source is None or self._has_version(source, version):
                probe = None
            else:
                probe = self._score_probe(source, version)
            self._sampler.wake()
            if source is not None and not self._has_version(source, version):
                self._sync_weights(source, version, probe or self._score_probe(source, version))
            yield self._record
            self._sampler.sleep()  # not after an error, which takes precedence
        finally:
            self._open = False

    def take_snapshot(self, version: int) -> WeightSnapshot:
        """Copies the learner's current weights, which have this version.

        Raises:
            RuntimeError: If there is no learner.
        """
        if self._learner is None:
            raise RuntimeError("no weights to copy; the sampler keeps its initial weights")
        return WeightSnapshot.copy_from(self._learner, version, self._sampler.dtype, self._probe)

    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> Batch:
        """Generates, see `Sampler.generate`.

        Raises:
            RuntimeError: Outside the session.
            NotFiniteError: The sampler's result does not match the request or is not finite.
        """
        self._require_open()
        batch = self._sampler.generate(requests, sampling)
        version = self._sampler.version
        if version is None:
            whose = "the sampler"
        else:
            whose = f"the sampler with the weights of step {version}"
        require_responses(whose, batch, requests, sampling)
        return batch

    @property
    def sampler(self) -> Sampler:
        """The sampler, for an endpoint that draws from it until the session ends.

        Raises:
            RuntimeError: Outside the session.
        """
        self._require_open()
        return self._sampler

    def logprobs(self, batch: Batch) -> Tensor:
        """Scores, see `Sampler.logprobs`.

        Raises:
            RuntimeError: Outside the session.
        """
        self._require_open()
        return self._sampler.logprobs(batch)

    def resend_weights(self) -> None:
        """Repeats the weight sync with the sampler's current weights and version.

        Raises:
            RuntimeError: Outside the session, or without a previous weight sync.
            WeightSyncError: If the weights did not arrive.
        """
        self._require_open()
        if self._attested is None:
            raise RuntimeError("no weights to resend; the sampler keeps its initial weights")
        self._sync_weights(*self._attested, self._score_probe(*self._attested))

    def _has_version(self, source: WeightSource, version: int) -> bool:
        return self._sampler.version == version and self._attested == (source, version)

    def _score_probe(self, source: WeightSource, version: int) -> SyncProbe | None:
        """The probe, scored by the learner before the engine allocates memory; None if not due."""
        is_due = not self._is_proven or self._is_probe_reported(version)
        if self._probe is None or not is_due:
            return None
        with self._phase("weight_sync"):
            return self._probe.score_with(source)

    def _is_probe_reported(self, version: int) -> bool:
        """True if metrics include the probe; depends only on the version, since runs resume."""
        return not self._reads_all or version % PROBE_EVERY == 0

    def _sync_weights(self, source: WeightSource, version: int, probe: SyncProbe | None) -> None:
        self._attested = None
        with self._phase("weight_sync"):
            found = sync_weights(source, self._sampler, version, probe)
        counts = found.floats()
        self._is_proven = self._is_proven or probe is not None
        self._reads_all = (
            not counts["weight_sync/read_in_part"] and not counts["weight_sync/received_only"]
        )
        if self._is_probe_reported(version):
            hidden = ()
        else:
            hidden = ("weight_sync/probe_gap", "weight_sync/probe_gap_max")
        self._record = Metrics(
            {name: metric for name, metric in found.items() if name not in hidden}
        )
        self._attested = source, version

    def _require_open(self) -> None:
        if not self._open:
            raise RuntimeError("use the sampler only inside `with engine.at(version)`")
