"""Turns of learners and engines on shared GPUs: idle ones are offloaded to host memory.

The order of a step: learners are offloaded; the engine wakes, loads weights from the policy, which
has only one piece at a time on the device, allocates its KV cache, samples and sleeps; each learner
returns when it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from lockstep.cluster.learner_group import MeshLearner
from lockstep.core.batch import Batch
from lockstep.core.types import Request, SamplingParams
from lockstep.learners.rank import RankLearner
from lockstep.samplers.base import ResponsePiece, Sampler
from lockstep.weight_sync.attestation import WeightAttestation


class DeviceTurns:
    """Learners that take turns with the engines, and free cached device memory for each other."""

    def __init__(self) -> None:
        self._learners: list[RankLearner | MeshLearner] = []
        self._working: MeshLearner | None = None

    def add_learner(self, learner: RankLearner | MeshLearner) -> None:
        """Adds a learner that takes turns."""
        self._learners.append(learner)

    def begin_work(self, learner: MeshLearner) -> None:
        """Begins the work of a learner in separate processes; the previous one frees its cache."""
        if self._working is not None and self._working is not learner:
            self._working.empty_cache()
        self._working = learner

    def offload_learners(self, shared: object = None) -> None:
        """Offloads all learners.

        Args:
            shared: The learner whose weights the engine shares, which stay; None: the engine has
                its own.
        """
        for learner in self._learners:
            learner.offload(keep_weights=learner is shared)

    def start_engine(self, build: Callable[[], Sampler]) -> Sampler:
        """Starts an engine with its own weights, which sleeps until its first turn."""
        self.offload_learners()
        engine = build()
        engine.sleep()
        return SamplerInTurn(engine, self.offload_learners)

    def wrap_sampler(self, sampler: Sampler, learner: object) -> Sampler:
        """Wraps a sampler that shares a learner's weights, so that it takes turns."""
        return SamplerInTurn(sampler, partial(self.offload_learners, learner))


class SamplerInTurn:
    """A sampler that first offloads learners from its GPUs; implements `samplers.base.Sampler`.

    Args:
        sampler: The sampler.
        leave: Offloads the learners, unless they are offloaded already.
    """

    def __init__(self, sampler: Sampler, leave: Callable[[], None]) -> None:
        self._sampler = sampler
        self._leave = leave

    @property
    def dtype(self) -> torch.dtype:
        return self._sampler.dtype

    @property
    def version(self) -> int | None:
        return self._sampler.version

    def pieces(
        self, requests: Sequence[Request], sampling: SamplingParams
    ) -> Iterator[ResponsePiece]:
        self._leave()
        return self._sampler.pieces(requests, sampling)

    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> Batch:
        self._leave()
        return self._sampler.generate(requests, sampling)

    def logprobs(self, batch: Batch) -> Tensor:
        self._leave()
        return self._sampler.logprobs(batch)

    def logprobs_of_each(self, batch: Batch) -> Sequence[Tensor]:
        self._leave()
        return self._sampler.logprobs_of_each(batch)

    def load_weights(
        self, stream: Iterable[tuple[str, Tensor]], version: int
    ) -> Sequence[WeightAttestation]:
        self._leave()
        return self._sampler.load_weights(stream, version)

    def show(self, name: str) -> Tensor:
        self._leave()
        return self._sampler.show(name)

    def wake(self) -> None:
        self._leave()
        self._sampler.wake()

    def sleep(self) -> None:
        self._sampler.sleep()
