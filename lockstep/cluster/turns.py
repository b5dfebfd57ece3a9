"""Turns of learners and engines on GPUs that they share: whichever does not work is in the host's memory.

The order of a step: learners leave, the engine wakes for its weights, takes them from the policy, of which a piece at a
time is on the device, wakes for its cache, samples and sleeps; each learner comes back when it is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from lockstep.batch import Batch
from lockstep.samplers.base import Piece, Sampler
from lockstep.types import Request, SamplingParams
from lockstep.weight_sync.attestation import Attestation


class CanLeave(Protocol):
    """A learner that can give its devices to others."""

    def offload(self, keep_weights: bool = False) -> None:
        """Moves weights and moments to the host's memory, until a verb needs them; see `RankLearner.offload`."""
        ...

    def empty_cache(self) -> None:
        """Gives memory that is not in use back to the devices."""
        ...


class Turns:
    """The learners of a run that take turns with its engines, and with what each other's processes keep for later."""

    def __init__(self) -> None:
        self._learners: list[CanLeave] = []
        self._working: CanLeave | None = None

    def add(self, learner: CanLeave) -> None:
        """Adds a learner that leaves."""
        self._learners.append(learner)

    def begin(self, learner: CanLeave) -> None:
        """Begins the work of a learner in processes of its own: the one before gives back what it does not use."""
        if self._working is not None and self._working is not learner:
            self._working.empty_cache()
        self._working = learner

    def leave(self, shared: object = None) -> None:
        """Lets all learners leave.

        Args:
            shared: The one whose weights the engine computes with; None: it has weights of its own.
        """
        for learner in self._learners:
            learner.offload(keep_weights=learner is shared)

    def start(self, build: Callable[[], Sampler]) -> Sampler:
        """Starts an engine with weights of its own, which sleeps until its first turn."""
        self.leave()
        engine = build()
        engine.sleep()
        return SamplerInTurn(engine, self.leave)

    def share(self, sampler: Sampler, learner: object) -> Sampler:
        """The turns of a sampler that computes with the weights of one of the learners."""
        return SamplerInTurn(sampler, partial(self.leave, learner))


class SamplerInTurn:
    """A sampler whose GPUs learners leave before it works; implements `samplers.base.Sampler`.

    Args:
        sampler: The sampler.
        leave: Lets learners leave; where all have left, it does nothing.
    """

    def __init__(self, sampler: Sampler, leave: Callable[[], None]) -> None:
        self._sampler, self._leave = sampler, leave

    @property
    def dtype(self) -> torch.dtype:
        return self._sampler.dtype

    @property
    def version(self) -> int | None:
        return self._sampler.version

    def pieces(self, requests: Sequence[Request], sampling: SamplingParams) -> Iterator[Piece]:
        self._leave()
        return self._sampler.pieces(requests, sampling)

    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> Batch:
        self._leave()
        return self._sampler.generate(requests, sampling)

    def logprobs(self, batch: Batch) -> Tensor:
        self._leave()
        return self._sampler.logprobs(batch)

    def load_weights(self, stream: Iterable[tuple[str, Tensor]], version: int) -> Sequence[Attestation]:
        self._leave()
        return self._sampler.load_weights(stream, version)

    def wake(self) -> None:
        self._leave()
        self._sampler.wake()

    def sleep(self) -> None:
        self._sampler.sleep()
