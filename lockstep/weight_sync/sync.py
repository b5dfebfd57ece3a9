"""Weight sync from learner to sampler, with proof that the weights arrived and that the sampler uses them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from lockstep import keyed
from lockstep.batch import Batch
from lockstep.errors import BrokenPromiseError
from lockstep.metrics import Last, Metrics
from lockstep.weight_sync.attestation import Attestation
from lockstep.weight_sync.outgoing import HasWeights, Outgoing, Sender, Sent, type_for

_SEQUENCES, _LENGTH = 2, 32
LARGEST_GAP = {torch.float32: 1e-3, torch.bfloat16: 0.1}
"""Bounds on mean |Δ log π| of the probe, which is scored if an engine has tensors that could not be read back whole."""


class WeightSyncError(BrokenPromiseError):
    """The sampler does not hold what the learner sent."""


class WeightSource(HasWeights, Protocol):
    """The source of a sampler's weights: a learner as it is, or a `Snapshot` of it."""

    @property
    def sender(self) -> Sender | None:
        """Sends them from the processes that hold them; None if that is this process."""
        ...

    def logprobs(self, batch: Batch) -> Tensor: ...


class Receiver(Protocol):
    """An inference engine that takes weights: the part of a sampler that a weight sync needs."""

    @property
    def dtype(self) -> torch.dtype: ...

    def load_weights(self, stream: Iterable[tuple[str, Tensor]], version: int) -> Sequence[Attestation]: ...

    def logprobs(self, batch: Batch) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A copy of a learner's weights, for a sampler that works while the learner trains.

    Attributes:
        version: Version of the weights.
        tensors: Copies in host memory, by name, in the sampler's type.
        probe_logprob: Log-probabilities of the probe by the learner, see `sync_weights`; empty where there is no probe.
    """

    version: int
    tensors: Mapping[str, Tensor]
    probe_logprob: Tensor

    @classmethod
    def of(cls, learner: WeightSource, version: int, dtype: torch.dtype, probe: Batch | None) -> Snapshot:
        """Copies the learner's current weights; weights in other processes are cast before they are sent."""
        leaving = learner.weights() if learner.sender is None else Outgoing(learner, dtype, learner.sender)
        copies = {name: _copy(tensor, dtype) for name, tensor in leaving}
        if learner.sender is not None:
            learner.sender.finish()
        return cls(version, copies, torch.empty(0) if probe is None else learner.logprobs(probe))

    @property
    def sender(self) -> None:
        """None: copies are in this process."""

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.tensors.items()

    def logprobs(self, batch: Batch) -> Tensor:
        """Log-probabilities of the probe; `batch` has to be the probe."""
        return self.probe_logprob


def _copy(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    kind = type_for(tensor, dtype)
    return tensor.detach().to("cpu", kind, copy=True, memory_format=torch.contiguous_format)


def sync_weights(learner: WeightSource, sampler: Receiver, version: int, probe: Batch | None = None) -> Metrics:
    """Streams the weights, and compares fingerprints of what was sent with what each engine now holds.

    Args:
        learner: The source of the weights.
        sampler: The sampler that loads them.
        version: Version of the weights.
        probe: Sequences that both score, if an engine has tensors that cannot be read back whole; None: not scored.

    Raises:
        WeightSyncError: Names the tensors that differ or are missing on one side, or the caches that were kept.
    """
    outgoing = Outgoing(learner, sampler.dtype, learner.sender)
    attestations = sampler.load_weights(outgoing, version)
    for engine, held in enumerate(attestations, start=1):
        wrong = differing(outgoing.sent, held)
        if wrong:
            raise WeightSyncError(
                f"after refit {version} what sampler {engine} holds differs from what the learner sent: "
                + ", ".join(f"{name} ({why})" for name, why in wrong.items())
            )
    first = attestations[0]
    metrics = Metrics(
        {
            "refit/attested": Last(float(len(outgoing.sent))),
            "refit/version": Last(float(version)),
            "refit/read_whole": Last(float(len(first.fingerprints.keys() - first.columns.keys() - first.received))),
            "refit/read_in_part": Last(float(len(first.columns))),
            "refit/received_only": Last(float(len(first.received))),
        }
    )
    if probe is None or not (first.columns or first.received):
        return metrics
    return metrics + _compare_probe(learner, sampler, version, probe)


def differing(sent: Mapping[str, Sent], held: Attestation) -> dict[str, str]:
    """Finds tensors that an engine does not hold as they were sent, and caches that it kept, each with a reason."""
    expected = {**sent, **{name: sent[other] for name, other in held.tied.items() if other in sent}}
    faults = dict.fromkeys(held.fingerprints.keys() - expected.keys(), "was not sent")
    faults |= {name: fault for name, one in expected.items() if (fault := _fault(name, one, held)) is not None}
    return dict(sorted(faults.items())) | dict.fromkeys(held.kept_caches, "was not dropped")


def _fault(name: str, sent: Sent, held: Attestation) -> str | None:
    """Says what is wrong with a tensor; None if nothing is."""
    if name not in held.fingerprints:
        return "did not arrive"
    if held.fingerprints[name] != sent.whole:
        return "has other bits"
    if held.columns.get(name, sent.columns) != sent.columns:
        return "arrived, but is not what is computed with"
    return None


def random_probe(vocabulary: int, context: int) -> Batch:
    """A few sequences of random tokens, the same every time."""
    length = min(_LENGTH, context - 1)
    draws = keyed.uniforms(torch.arange(_SEQUENCES), torch.arange(length))
    mask = (torch.arange(length) > 0).repeat(_SEQUENCES)
    return Batch((draws * vocabulary).long().reshape(-1), torch.full((_SEQUENCES,), length), {"mask": mask})


def _compare_probe(learner: WeightSource, sampler: Receiver, version: int, probe: Batch) -> Metrics:
    gap = (learner.logprobs(probe) - sampler.logprobs(probe))[probe.mask].abs()
    bound = LARGEST_GAP[sampler.dtype]
    if not gap.mean() <= bound:
        raise WeightSyncError(
            f"after refit {version} the weights are equal, but learner and sampler give the same tokens other "
            f"log-probabilities (mean |Δ| {gap.mean():.2g} nats, more than {bound:g}): positions, masks or the "
            "sampler's own tables differ"
        )
    return Metrics({"refit/probe_gap": Last(gap.mean()), "refit/probe_gap_max": Last(gap.max())})
