"""Handing the learner's weights to the sampler, and proving that they arrived."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import Tensor

from lockstep.learners.base import Learner
from lockstep.metrics import Last, Metrics
from lockstep.models.weights import fingerprint
from lockstep.samplers.base import Sampler


class RefitError(RuntimeError):
    """The sampler does not hold what the learner sent."""


def refit(learner: Learner, sampler: Sampler, version: int) -> Metrics:
    """Streams the weights and compares fingerprints of what was sent with what the sampler now holds.

    Raises:
        RefitError: With the names of the tensors that differ or are missing on one side.
    """
    sent: dict[str, int] = {}
    attestation = sampler.load_weights(_recorded(learner.weights(), sent), version)
    held = attestation.fingerprints
    wrong = sorted(name for name in sent.keys() | held.keys() if sent.get(name) != held.get(name))
    if wrong:
        raise RefitError(
            f"after refit {version} the sampler's weights differ from the learner's in: {', '.join(wrong)}"
        )
    return Metrics({"refit/attested": Last(float(len(sent))), "refit/version": Last(float(attestation.version))})


def _recorded(stream: Iterable[tuple[str, Tensor]], sent: dict[str, int]) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in stream:
        sent[name] = fingerprint(tensor)
        yield name, tensor
