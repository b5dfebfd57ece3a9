"""The verbs by which a driver lets a rank send its weights, bucket by bucket, while it gathers them from the others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from lockstep.distributed.meeting import Meeting
from lockstep.weight_sync.outgoing import Outgoing, Sent
from lockstep.weight_sync.sender import LocalSender
from lockstep.weight_sync.transfer import Bucket


@dataclass(frozen=True)
class Shipment:
    """A bucket, and the fingerprints of its tensors by name."""

    bucket: Bucket
    sent: dict[str, Sent]


@dataclass(frozen=True)
class Cast:
    """Weights of a rank, cast before they are gathered."""

    rank: SendsWeights
    dtype: torch.dtype

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        return self.rank.weights(self.dtype)


class SendsWeights(ABC):
    """A rank that can send its weights itself."""

    _leaving: Generator[Shipment] | None = None

    @abstractmethod
    def weights(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        """Yields weights as in the protocol; all ranks have to iterate it together, and each gets everything.

        Args:
            dtype: Floating-point numbers are cast to it before they are gathered; None: as they are.
        """

    def take_part_in_weights(self, dtype: torch.dtype | None = None) -> None:
        """Iterates `weights`, so that the rank that sends them can gather."""
        for _ in self.weights(dtype):
            pass

    def join_receivers(self, meeting: Meeting | None) -> None:
        """See `Sender.join`."""
        self._sender.join(meeting)

    def begin_sending(self, dtype: torch.dtype) -> None:
        """Begins a weight sync. The other ranks have to take part in it."""
        self._leaving = self._ship_all(dtype)

    def fill_bucket(self) -> Shipment | None:
        """Fills the next bucket; None: all have been filled."""
        assert self._leaving is not None, "buckets are filled between begin_sending and end_sending"
        return next(self._leaving, None)

    def ship_bucket(self, bucket: Bucket) -> None:
        """See `Sender.ship`."""
        self._sender.ship(bucket)

    def end_sending(self) -> None:
        """Ends a weight sync; what has not been sent is gathered all the same, since other ranks take part in it."""
        assert self._leaving is not None, "a weight sync ends once, after begin_sending"
        for _ in self._leaving:
            pass
        self._leaving = None

    def _ship_all(self, dtype: torch.dtype) -> Generator[Shipment]:
        outgoing = Outgoing(Cast(self, dtype), dtype)
        for bucket in self._sender.buckets(outgoing):
            sent = outgoing.sent
            yield Shipment(bucket, {slot.name: sent[slot.name] for slot in bucket.slots})

    @cached_property
    def _sender(self) -> LocalSender:
        return LocalSender()
