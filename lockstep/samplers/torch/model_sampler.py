"""The base class of torch samplers: a model in this process, and its weight sync."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor
from transformers import PreTrainedModel

from lockstep.config import DType
from lockstep.core.batch import Batch
from lockstep.core.borders import NotFiniteError
from lockstep.core.types import Request, SamplingParams
from lockstep.models.exact.chunks import keep_casts
from lockstep.models.folder import find_context_length
from lockstep.models.heads import LogitsHead, canonical_name
from lockstep.models.precision import OVERFLOW, TORCH_TYPES, open_autocast
from lockstep.samplers.base import ResponsePiece, gather_pieces
from lockstep.samplers.torch.prefill import split_passes
from lockstep.samplers.torch.scheduler import PASS_TOKENS
from lockstep.samplers.torch.sequences import Response
from lockstep.weight_sync.attestation import WeightAttestation
from lockstep.weight_sync.buckets import WeightBucket
from lockstep.weight_sync.carriers import BucketCarrier, TransferRoute, open_carrier, unpack_bucket
from lockstep.weight_sync.fingerprints import read_fingerprints, start_fingerprint


class ModelSampler(ABC):
    """Implements `samplers.base.Sampler` except `pieces`; can share the learner's weights.

    Args:
        lm: A causal language model with Lockstep's attention.
        max_batch_size: Maximum number of concurrent sequences.
        dtype: Autocast type, the same as the learner's; weights are always fp32.
    """

    dtype = torch.float32

    def __init__(self, lm: PreTrainedModel, max_batch_size: int, dtype: DType = "fp32") -> None:
        self._lm = lm
        self._max_batch_size = max_batch_size
        self._type: DType = dtype
        self._context = find_context_length(lm.config)
        self.version: int | None = None
        self._carrier: BucketCarrier | None = None
        self._own = dict[str, Tensor]()

    @abstractmethod
    def pieces(
        self, requests: Sequence[Request], sampling: SamplingParams
    ) -> Iterator[ResponsePiece]:
        """See `samplers.base.Sampler`."""

    @abstractmethod
    def wake(self) -> None:
        """Prepares to generate or to load weights."""

    @abstractmethod
    def sleep(self) -> None:
        """Frees everything but the weights between rollouts."""

    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> Batch:
        return gather_pieces(self.pieces(requests, sampling))

    @torch.no_grad()
    def logprobs(self, batch: Batch) -> Tensor:
        """See `samplers.base.Sampler`; passes are no larger than in generation."""
        head = LogitsHead(self._lm)
        bare = replace(batch, sampling=None, entropy=False)
        scores = list[Tensor]()
        with self._autocast_context():
            for rows in split_passes(batch.lengths.tolist(), self._max_batch_size, PASS_TOKENS):
                scores.append(head(bare.select(rows).to(self._lm.device)).logprob)
        return torch.cat(scores).float().cpu()

    def logprobs_of_each(self, batch: Batch) -> Sequence[Tensor]:
        return [self.logprobs(batch)]

    def load_weights(
        self, stream: Iterable[tuple[str, Tensor]], version: int
    ) -> Sequence[WeightAttestation]:
        self.version = None
        self._begin_sync()
        self._copy_weights(stream)
        return [self.attest(version)]

    def join(self, route: TransferRoute) -> None:
        self._carrier = open_carrier(route)

    def receive(self, bucket: WeightBucket) -> None:
        assert self._carrier is not None, "a receiver joins a route before it receives"
        if bucket.number == 0:
            self._begin_sync()
        self._copy_weights(unpack_bucket(self._carrier, bucket, self._lm.device))

    def attest(self, version: int) -> WeightAttestation:
        self.version = version
        found = {name: start_fingerprint(tensor) for name, tensor in self._iterate_tensors()}
        return WeightAttestation(
            version, dict(zip(found, read_fingerprints(list(found.values())), strict=True))
        )

    def show(self, name: str) -> Tensor:
        return dict(self._iterate_tensors())[name].detach()

    def close(self) -> None:  # noqa: B027 -- no sampler of this kind has anything to do
        """Does nothing: there are no worker processes."""

    def _iterate_tensors(self) -> Iterator[tuple[str, Tensor]]:
        held = chain(self._lm.named_parameters(), self._lm.named_buffers())
        return ((canonical_name(f"lm.{name}"), tensor) for name, tensor in held)

    def _begin_sync(self) -> None:
        self._own = dict(self._iterate_tensors())

    @torch.no_grad()
    def _copy_weights(self, stream: Iterable[tuple[str, Tensor]]) -> None:
        for name, tensor in stream:
            own = self._own[name]
            if own.data_ptr() != tensor.data_ptr():
                own.copy_(tensor)

    @contextmanager
    def _autocast_context(self) -> Iterator[None]:
        """The autocast context of the sampler's type.

        Until it exits, it caches casts of weights that require a gradient, so weights that adapters
        froze require one inside it.
        """
        frozen = [parameter for parameter in self._lm.parameters() if not parameter.requires_grad]
        for parameter in frozen:
            parameter.requires_grad_(True)
        try:
            with open_autocast(self._lm.device, self._type), keep_casts():
                yield
        finally:
            for parameter in frozen:
                parameter.requires_grad_(False)

    def _assemble_batch(
        self, requests: Sequence[Request], responses: Sequence[Response], sampling: SamplingParams
    ) -> Batch:
        return append_responses(requests, responses, self.version or 0, sampling)

    def _not_finite(self, requests: Sequence[Request], row: int, token: int) -> NotFiniteError:
        if self.version is None:
            weights = "with its initial weights"
        else:
            weights = f"with the weights of step {self.version}"
        cure = "lower the learning rate, or check the model's weights"
        if TORCH_TYPES[self._type] == torch.float16:
            cure = OVERFLOW
        folder = self._lm.config.name_or_path or "memory"
        prompt = len(requests[row].tokens)
        return NotFiniteError(
            f"the model in {folder}, {weights}, returns non-finite logits for token {token + 1} "
            f"of the response to row {row} of {len(requests)} ({prompt} prompt tokens); {cure}",
            Batch(
                torch.tensor(list(chain.from_iterable(request.tokens for request in requests))),
                torch.tensor([len(request.tokens) for request in requests]),
            ),
        )


def append_responses(
    requests: Sequence[Request],
    responses: Sequence[Response],
    version: int,
    sampling: SamplingParams,
) -> Batch:
    """Appends each response to its prompt."""
    tokens = list[int]()
    lengths = list[int]()
    logprobs = list[float]()
    for request, response in zip(requests, responses, strict=True):
        tokens += [*request.tokens, *response.tokens]
        lengths.append(len(request.tokens) + len(response.tokens))
        logprobs += response.logprobs
    batch = Batch(torch.tensor(tokens), torch.tensor(lengths), sampling=sampling)
    mask = batch.position >= torch.tensor([len(request.tokens) for request in requests])[batch.row]
    logprob = torch.zeros(len(tokens))
    logprob[mask] = torch.tensor(logprobs)
    return batch.with_columns(
        {"mask": mask, "sampler_logprob": logprob},
        {
            "truncated": torch.tensor([not response.stopped for response in responses]),
            "version": torch.full((len(requests),), version),
        },
    )
