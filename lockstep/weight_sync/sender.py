"""The sender in a process that has weights, or a part of them."""

from __future__ import annotations

from collections.abc import Generator

import torch

from lockstep.weight_sync.buckets import WeightBucket, end_of, pack
from lockstep.weight_sync.carriers import BucketCarrier, SharedFiles, TransferRoute, open_carrier
from lockstep.weight_sync.fingerprints import take
from lockstep.weight_sync.outgoing import OutgoingWeights


class LocalSender(SharedFiles):
    """Sends weights of this process, as an `outgoing.WeightSender` does for others."""

    def __init__(self) -> None:
        self._carrier: BucketCarrier | None = None
        self.route: TransferRoute | None = None

    def join(self, route: TransferRoute, opens: bool = True) -> None:
        """See `outgoing.WeightSender`; without `opens`, only helps to gather for another sender."""
        self._carrier = open_carrier(route) if opens else None
        self.route = route

    def buckets(self, stream: OutgoingWeights, columns: bool) -> Generator[WeightBucket]:
        for number, (slots, tensors) in enumerate(pack(stream.uncast())):
            flat = self._opened.memory(number, end_of(slots), tensors[0].device)
            for slot, tensor in zip(slots, tensors, strict=True):
                sent = slot.of(flat).copy_(tensor)
                stream.note_taken(slot.name, take(sent), sent, columns)
            yield self._opened.seal(number, slots)

    def ship(self, bucket: WeightBucket) -> None:
        self._opened.ship(bucket)

    def finish(self) -> None:
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()

    @property
    def _opened(self) -> BucketCarrier:
        assert self._carrier is not None, "a sender joins a route before it sends"
        return self._carrier


def gather_buckets(stream: OutgoingWeights) -> Generator[WeightBucket]:
    """Takes part in gathering what another process sends, in the same buckets, and drops it."""
    for number, (slots, _) in enumerate(pack(stream.uncast())):
        yield WeightBucket(number, end_of(slots), slots)
