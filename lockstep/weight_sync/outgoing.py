"""Outgoing weights of a sync: cast to the sampler's type, and fingerprinted when sent."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import torch
from torch import Tensor

from lockstep.weight_sync.buckets import WeightBucket
from lockstep.weight_sync.carriers import TransferRoute, open_carrier, unpack_bucket
from lockstep.weight_sync.fingerprints import (
    PendingFingerprint,
    read_fingerprints,
    start_column_fingerprint,
    start_fingerprint,
)


@dataclass(frozen=True)
class SentFingerprint:
    """Fingerprints of a sent tensor, as in `WeightAttestation`; `columns` if receivers pack it."""

    whole: int
    columns: int | None


WeightSupplier = Callable[[], Iterator[tuple[str, Tensor]]]
"""`Learner.weights`, or the same method of another source of weights."""


class WeightSender(Protocol):
    """Sends weights from the processes that hold them. The caller passes each bucket to receivers.

    Attributes:
        route: Route that it joined last; None: not joined yet.
        on_host: Whether the weights are in host memory, even if their processes have GPUs.
        one_machine: Whether its processes share memory with this one.
    """

    route: TransferRoute | None
    on_host: bool
    one_machine: bool

    @property
    def file_paths(self) -> tuple[str, ...]:
        """Files of shared memory that it fills."""
        ...

    def stream_weights(self, dtype: torch.dtype | None) -> Iterator[tuple[str, Tensor]]:
        """Yields names and tensors in messages, also across machines; cast before sending."""
        ...

    def open_route(self, route: TransferRoute) -> None:
        """Opens its end of the route for all following buckets."""
        ...

    def fill_buckets(self, stream: OutgoingWeights, columns: bool) -> Generator[WeightBucket]:
        """Fills buckets, and notes fingerprints of the sent tensors.

        A bucket's bytes stay valid until the second next bucket is requested.

        Args:
            stream: The weights.
            columns: Also fingerprint columns.
        """
        ...

    def ship_bucket(self, bucket: WeightBucket) -> None:
        """Sends the newest bucket's bytes; returns when all receivers have them."""
        ...

    def free_buckets(self) -> None:
        """Frees the last buckets' memory, before engines allocate memory for sampling."""
        ...


class OutgoingWeights:
    """The learner's weights in the sampler's type; can be iterated again.

    Args:
        weights: Yields the weights of the source.
        dtype: The sampler's type; None: weights are not cast.
        sender: Sends the weights from the processes that hold them; None: this process.
        once: Whether they may be yielded only once.
    """

    def __init__(
        self,
        weights: WeightSupplier,
        dtype: torch.dtype | None,
        sender: WeightSender | None = None,
        once: bool = False,
    ) -> None:
        self._sent = dict[str, SentFingerprint]()
        self._pending = dict[str, tuple[PendingFingerprint, PendingFingerprint | None]]()
        self.dtype = dtype
        self.sender = sender
        self._weights = weights
        self._once = once

    @classmethod
    def wrap_stream(cls, stream: Iterable[tuple[str, Tensor]]) -> OutgoingWeights:
        """Wraps a stream of this process's tensors, uncast; returns an `OutgoingWeights`
        unchanged.
        """
        if isinstance(stream, OutgoingWeights):
            return stream
        return cls(lambda: iter(stream), None, once=True)

    @property
    def on_gpu(self) -> bool:
        """True if the weights are on GPUs; weights that are yielded only once count as on the
        host.
        """
        if self.sender is not None:
            return not self.sender.on_host
        return not self._once and any(tensor.is_cuda for _, tensor in islice(self._weights(), 1))

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        """Yields names and tensors.

        If another process sends them, a tensor may change once the next is requested.
        """
        if self.sender is None:
            yield from self._cast_and_note(self._weights())
            return
        if not self.sender.one_machine:
            yield from self._cast_and_note(self.sender.stream_weights(self.dtype))
            return
        route = TransferRoute("shared_memory", self.sender.file_paths)
        self.sender.open_route(route)
        carrier = open_carrier(route)
        for bucket in self.sender.fill_buckets(self, columns=True):
            yield from unpack_bucket(carrier, bucket, torch.device("cpu"))

    def uncast_tensors(self) -> Iterator[tuple[str, Tensor, torch.dtype]]:
        """This process's tensors, each with its sent type."""
        for name, tensor in self._weights():
            yield name, tensor.detach(), choose_sent_dtype(tensor, self.dtype)

    def _cast_and_note(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in weights:
            cast = tensor.to(choose_sent_dtype(tensor, self.dtype))
            self.note_pending_fingerprint(name, start_fingerprint(cast), cast)
            yield name, cast

    @property
    def sent_fingerprints(self) -> dict[str, SentFingerprint]:
        """Fingerprints of the sent tensors, by name; reads all computed ones in one transfer."""
        pending = list[PendingFingerprint]()
        for whole, columns in self._pending.values():
            pending.append(whole)
            if columns is not None:
                pending.append(columns)
        values = iter(read_fingerprints(pending))
        for name, (_, columns) in self._pending.items():
            self._sent[name] = SentFingerprint(
                next(values), None if columns is None else next(values)
            )
        self._pending = {}
        return self._sent

    def take_new_fingerprints(self) -> dict[str, SentFingerprint]:
        """The fingerprints computed or noted since the last call."""
        sent = self.sent_fingerprints
        self._sent = {}
        return sent

    def note_pending_fingerprint(
        self, name: str, whole: PendingFingerprint, tensor: Tensor, columns: bool = True
    ) -> None:
        """Notes the fingerprint of a tensor of this process, and computes its columns'."""
        self._pending[name] = (
            whole,
            start_column_fingerprint(tensor) if columns and tensor.ndim == 2 else None,
        )

    def note_fingerprints(self, sent: Mapping[str, SentFingerprint]) -> None:
        """Notes fingerprints of tensors that another process sent."""
        self._sent |= sent


def choose_sent_dtype(tensor: Tensor, dtype: torch.dtype | None) -> torch.dtype:
    """The type in which a tensor is sent for `dtype`; only floating-point tensors are cast."""
    if dtype is not None and tensor.is_floating_point():
        return dtype
    return tensor.dtype
