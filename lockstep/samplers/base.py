"""The sampler's protocol: what algorithms ask of whatever generates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from lockstep.batch import Batch, concat
from lockstep.types import Request, SamplingParams

Piece = tuple[Sequence[int], Batch]
"""Some of the requests, by their places, and their responses in that order."""


@dataclass(frozen=True)
class Attestation:
    """What a sampler holds after a refit: the weights' version and a fingerprint of each tensor (`models.weights`)."""

    version: int
    fingerprints: dict[str, int]


class Sampler(Protocol):
    """Turns requests into responses."""

    def pieces(self, requests: Sequence[Request], sampling: SamplingParams) -> Iterator[Piece]:
        """Draws one response per request, and hands them over as they become ready, in any order.

        Yields:
            Places in `requests`, and a batch of their sequences, each prompt then response, with per-token `mask` (True
            on response tokens) and `sampler_logprob` (nats, of the drawn tokens under `sampling`, 0 elsewhere), and per
            sample `truncated` (True where `max_tokens` or the context ended the response) and `version`.
        """
        ...

    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> Batch:
        """The `pieces` as one batch in the order of the requests."""
        ...

    def load_weights(self, stream: Iterable[tuple[str, Tensor]], version: int) -> Attestation:
        """Takes new weights, drops every cache that depended on the old ones, and says what it now holds."""
        ...


def gathered(pieces: Iterable[Piece]) -> Batch:
    """Pieces of one `Sampler.pieces` as one batch, in the order of the requests."""
    places, batches = zip(*pieces, strict=True)
    order = torch.tensor([place for some in places for place in some])
    return concat(batches).select(torch.argsort(order))
