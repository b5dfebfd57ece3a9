"""Weight sync from learner to sampler, with proof that the weights arrived and are in use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self

import torch
from torch import Tensor

from lockstep.core import keyed
from lockstep.core.batch import Batch
from lockstep.core.errors import BrokenPromiseError
from lockstep.core.metrics import LastValue, Metrics
from lockstep.weight_sync.attestation import WeightAttestation
from lockstep.weight_sync.outgoing import (
    OutgoingWeights,
    SentFingerprint,
    WeightSender,
    choose_sent_dtype,
)

_SEQUENCES = 2
_LENGTH = 32
_LARGEST_GAP = {"fp32": 1e-3, "fp16": 0.1, "bf16": 0.1}
"""Bounds on mean |Δ log π| of the probe, nats, by the type of learner and sampler."""


class WeightSyncError(BrokenPromiseError):
    """The sampler's weights differ from the learner's."""


class WeightSource(Protocol):
    """The source of a sampler's weights: a learner, or a `WeightSnapshot` of it."""

    @property
    def sender(self) -> WeightSender | None:
        """Sends the weights from other processes that hold them; None: they are in this process."""
        ...

    def weights(self) -> Iterator[tuple[str, Tensor]]: ...

    def logprobs(self, batch: Batch) -> Tensor: ...


class WeightTarget(Protocol):
    """Inference engines that receive weights: the part of a sampler that a weight sync needs."""

    @property
    def dtype(self) -> torch.dtype: ...

    def load_weights(
        self, stream: Iterable[tuple[str, Tensor]], version: int
    ) -> Sequence[WeightAttestation]: ...

    def logprobs_of_each(self, batch: Batch) -> Sequence[Tensor]: ...


@dataclass(frozen=True, eq=False)
class SyncProbe:
    """Sequences that learner and engines score: equal weights, equal log-probabilities.

    Attributes:
        batch: Sequences to score.
        bound: Bound on mean |Δ log π|, nats.
        logprob: Log-probabilities by the learner; None: not scored yet.
    """

    batch: Batch
    bound: float
    logprob: Tensor | None = None

    def score_with(self, learner: WeightSource) -> Self:
        """The same probe with the learner's log-probabilities.

        Call it before the engines allocate their memory.
        """
        return replace(self, logprob=learner.logprobs(self.batch))


@dataclass(frozen=True, eq=False)
class WeightSnapshot:
    """A copy of a learner's weights, for a sampler that works while the learner trains.

    Attributes:
        version: Version of the weights.
        tensors: Copies in host memory, by name, in the sampler's type.
        probe_logprob: Log-probabilities of the probe by the learner; empty without a probe.
    """

    version: int
    tensors: Mapping[str, Tensor]
    probe_logprob: Tensor

    @classmethod
    def copy_from(
        cls, learner: WeightSource, version: int, dtype: torch.dtype, probe: SyncProbe | None
    ) -> WeightSnapshot:
        """Copies the learner's current weights; other processes cast theirs before sending."""
        if learner.sender is None:
            stream = learner.weights()
        else:
            stream = OutgoingWeights(learner.weights, dtype, learner.sender)
        copies = dict[str, Tensor]()
        for name, tensor in stream:
            copies[name] = tensor.detach().to(
                "cpu",
                choose_sent_dtype(tensor, dtype),
                copy=True,
                memory_format=torch.contiguous_format,
            )
        if learner.sender is not None:
            learner.sender.free_buckets()
        return cls(
            version, copies, torch.empty(0) if probe is None else learner.logprobs(probe.batch)
        )

    @property
    def sender(self) -> None:
        """None: the copies are in this process."""

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.tensors.items()

    def logprobs(self, batch: Batch) -> Tensor:
        """Log-probabilities of the probe; `batch` must be the probe."""
        return self.probe_logprob


def sync_weights(
    learner: WeightSource, sampler: WeightTarget, version: int, probe: SyncProbe | None = None
) -> Metrics:
    """Streams the weights, and compares sent fingerprints with each engine's new ones.

    Args:
        learner: Source of the weights.
        sampler: Sampler that receives them.
        version: Version of the weights.
        probe: Sequences that both score; None: no probe.

    Raises:
        WeightSyncError: Tensors differ or are missing on one side, caches were kept, or an engine
            scores the probe differently.
    """
    outgoing = OutgoingWeights(learner.weights, sampler.dtype, learner.sender)
    attestations = sampler.load_weights(outgoing, version)
    for engine, held in enumerate(attestations, start=1):
        wrong = find_differences(outgoing.sent_fingerprints, held)
        if wrong:
            raise WeightSyncError(
                f"after weight sync {version} the weights of sampler {engine} differ from those "
                "sent by the learner: "
                + ", ".join(f"{name} ({why})" for name, why in wrong.items())
            )
    first = attestations[0]
    metrics = Metrics(
        {
            "weight_sync/attested": LastValue(float(len(outgoing.sent_fingerprints))),
            "weight_sync/version": LastValue(float(version)),
            "weight_sync/read_whole": LastValue(
                float(len(first.fingerprints.keys() - first.columns.keys() - first.received))
            ),
            "weight_sync/read_in_part": LastValue(float(len(first.columns))),
            "weight_sync/received_only": LastValue(float(len(first.received))),
        }
    )
    if probe is None:
        return metrics
    return metrics + _compare_probe(learner, sampler, version, probe)


def find_differences(
    sent: Mapping[str, SentFingerprint], held: WeightAttestation
) -> dict[str, str]:
    """Finds tensors that differ from the sent ones, and caches that were kept, with reasons."""
    expected = {**sent, **{name: sent[other] for name, other in held.tied.items() if other in sent}}
    faults = dict.fromkeys(held.fingerprints.keys() - expected.keys(), "was not sent")
    for name, fingerprint in expected.items():
        if name not in held.fingerprints:
            faults[name] = "did not arrive"
        elif held.fingerprints[name] != fingerprint.whole:
            faults[name] = "has different bits"
        elif held.columns.get(name, fingerprint.columns) != fingerprint.columns:
            faults[name] = "arrived, but the engine does not compute with it"
    return dict(sorted(faults.items())) | dict.fromkeys(held.kept_caches, "was not dropped")


def random_probe(vocabulary: int, context: int, *dtypes: str) -> SyncProbe:
    """A few sequences of random tokens, the same on every call.

    Args:
        vocabulary: Number of tokens.
        context: Maximum sequence length of both.
        *dtypes: Types that learner and samplers compute in, as `learner.dtype`; fp32 if omitted.
    """
    length = min(_LENGTH, context - 1)
    draws = keyed.draw_uniforms(torch.arange(_SEQUENCES), torch.arange(length))
    mask = (torch.arange(length) > 0).repeat(_SEQUENCES)
    batch = Batch(
        (draws * vocabulary).long().reshape(-1), torch.full((_SEQUENCES,), length), {"mask": mask}
    )
    return SyncProbe(batch, max(_LARGEST_GAP[dtype] for dtype in dtypes or ("fp32",)))


def _compare_probe(
    learner: WeightSource, sampler: WeightTarget, version: int, probe: SyncProbe
) -> Metrics:
    """Compares the learner's log-probabilities with each engine's."""
    if probe.logprob is None:
        expected = learner.logprobs(probe.batch)
    else:
        expected = probe.logprob
    gaps: list[Tensor] = []
    for found in sampler.logprobs_of_each(probe.batch):
        gaps.append((expected - found)[probe.batch.mask].abs())
    for engine, gap in enumerate(gaps, start=1):
        if not gap.mean() <= probe.bound:
            raise WeightSyncError(
                f"after weight sync {version} the weights are equal, but learner and sampler "
                f"{engine} disagree on log-probabilities of the same tokens (mean |Δ| "
                f"{gap.mean():.2g} nats, above {probe.bound:g}): positions, masks or the sampler's "
                "own tables differ"
            )
    all_gaps = torch.stack(gaps)
    return Metrics(
        {
            "weight_sync/probe_gap": LastValue(all_gaps.mean()),
            "weight_sync/probe_gap_max": LastValue(all_gaps.max()),
        }
    )
