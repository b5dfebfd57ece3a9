"""The sampler's protocol: what algorithms ask of whatever generates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from lockstep.batch import Batch
from lockstep.types import Request, SamplingParams


@dataclass(frozen=True)
class Attestation:
    """What a sampler holds after a refit: the weights' version and a fingerprint of each tensor (`models.weights`)."""

    version: int
    fingerprints: dict[str, int]


class Sampler(Protocol):
    """Turns requests into responses."""

    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> Batch:
        """Draws one response per request.

        Returns:
            A batch in the order of the requests, each sequence prompt then response, with per-token `mask` (True on
            response tokens) and `sampler_logprob` (nats, of the drawn tokens under `sampling`, 0 elsewhere), and per
            sample `truncated` (True where `max_tokens` or the context ended the response) and `version`.
        """
        ...

    def load_weights(self, stream: Iterable[tuple[str, Tensor]], version: int) -> Attestation:
        """Takes new weights, drops every cache that depended on the old ones, and says what it now holds."""
        ...
