"""The sampler protocol: the methods that algorithms call, for any inference engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from lockstep.core.batch import Batch, concat_batches
from lockstep.core.errors import InputError
from lockstep.core.types import Request, SamplingParams
from lockstep.weight_sync.attestation import WeightAttestation
from lockstep.weight_sync.buckets import WeightBucket
from lockstep.weight_sync.carriers import TransferRoute

ResponsePiece = tuple[Sequence[int], Batch]
"""Indices of some requests, and a batch of their responses in the same order."""


class Sampler(Protocol):
    """Generates responses to requests."""

    @property
    def dtype(self) -> torch.dtype:
        """Type of its weights; a weight sync casts to it before sending."""
        ...

    @property
    def version(self) -> int | None:
        """Version of the loaded weights; None if an engine has none or dropped them."""
        ...

    def pieces(
        self, requests: Sequence[Request], sampling: SamplingParams
    ) -> Iterator[ResponsePiece]:
        """Samples one response per request; yields responses as they finish, in any order.

        Yields:
            Indices into `requests`, and a batch of their sequences (prompt, then response), with
        per-token `mask` (True on response tokens) and `sampler_logprob` (nats, of sampled tokens
        under `sampling`, 0 elsewhere), and per sample `truncated` (True if `max_tokens` or the
        context ended the response) and `version`.
        """
        ...

    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> Batch:
        """The `pieces` as one batch in the order of the requests."""
        ...

    def logprobs(self, batch: Batch) -> Tensor:
        """log π(x_t | x_<t) of the masked tokens at temperature 1, nats, fp32 [N]; 0 elsewhere."""
        ...

    def logprobs_of_each(self, batch: Batch) -> Sequence[Tensor]:
        """`logprobs` of every engine, in the order of their attestations."""
        ...

    def load_weights(
        self, stream: Iterable[tuple[str, Tensor]], version: int
    ) -> Sequence[WeightAttestation]:
        """Loads new weights, drops all caches of the old ones, and attests each engine's weights.

        Args:
            stream: Canonical names and tensors of `dtype`; can be iterated more than once.
            version: Version of the weights; samples carry it.
        """
        ...

    def show(self, name: str) -> Tensor:
        """The tensor that the first engine computes with now, by its attested name."""
        ...

    def wake(self) -> None:
        """Prepares to generate or to load weights."""
        ...

    def sleep(self) -> None:
        """Frees memory for a learner on the same device, if the recipe sets that."""
        ...


@runtime_checkable
class ContinuousSampler(Protocol):
    """A sampler in this process that takes new requests while others run."""

    @property
    def version(self) -> int | None: ...

    def submit(self, request: Request, sampling: SamplingParams) -> int:
        """Queues a request. Returns its number.

        Raises:
            InputError: The prompt leaves no room for a response.
        """
        ...

    def advance(self) -> Mapping[int, Batch]:
        """Generates some tokens of the submitted requests.

        Returns:
            Batches of one response, see `Sampler.pieces`, by the number of the request.
        """
        ...

    def abort(self, number: int) -> None:
        """Removes a request, whether it waits or runs."""
        ...


class WorkerSampler(Protocol):
    """A sampler in a worker process, called by a `Sampler` in another; gets weights in buckets."""

    def pieces(
        self, requests: Sequence[Request], sampling: SamplingParams
    ) -> Iterator[ResponsePiece]: ...

    def logprobs(self, batch: Batch) -> Tensor: ...

    def join(self, route: TransferRoute) -> None:
        """Opens the receiving end of the route for the next weights.

        Args:
            route: Route of this process; if an engine has several ranks, of its first rank: the
                others use the next ranks.
        """
        ...

    def receive(self, bucket: WeightBucket) -> None:
        """Receives some of the new weights; bucket number 0 begins a weight sync."""
        ...

    def attest(self, version: int) -> WeightAttestation:
        """Ends a weight sync: drops all caches of the old weights, and attests the new ones."""
        ...

    def show(self, name: str) -> Tensor:
        """The tensor that the engine computes with now, by its attested name."""
        ...

    def wake(self) -> None: ...

    def sleep(self) -> None: ...

    def close(self) -> None:
        """Ends the processes that the sampler started."""
        ...


def gather_pieces(pieces: Iterable[ResponsePiece]) -> Batch:
    """The pieces of one `Sampler.pieces` as one batch, in the order of the requests."""
    indices, batches = zip(*pieces, strict=True)
    order = torch.tensor(list(chain.from_iterable(indices)))
    return concat_batches(batches).select(torch.argsort(order))


def require_room(requests: Sequence[Request], context: int) -> None:
    """Raises ValueError if a prompt is empty or leaves no room for a response."""
    for index, request in enumerate(requests):
        if not 0 < len(request.tokens) < context:
            raise InputError(
                f"request {index} has {len(request.tokens)} prompt tokens; a prompt needs at least "
                f"1 and, in this model's context of {context}, at most {context - 1}"
            )
