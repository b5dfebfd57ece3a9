"""The sender in a process that has weights, or a part of them."""

from __future__ import annotations

from collections.abc import Generator

import torch

from lockstep.weight_sync.buckets import WeightBucket, count_aligned_bytes, pack_buckets
from lockstep.weight_sync.carriers import BucketCarrier, SharedFiles, TransferRoute, open_carrier
from lockstep.weight_sync.fingerprints import start_fingerprint
from lockstep.weight_sync.outgoing import OutgoingWeights


class LocalSender(SharedFiles):
    """Sends weights of this process, as an `outgoing.WeightSender` does for others."""

    def __init__(self) -> None:
        self._carrier: BucketCarrier | None = None
        self.route: TransferRoute | None = None

    def open_route(self, route: TransferRoute, opens: bool = True) -> None:
        """See `outgoing.WeightSender`; without `opens`, only helps to gather for another sender."""
        self._carrier = open_carrier(route) if opens else None
        self.route = route

    def fill_buckets(self, stream: OutgoingWeights, columns: bool) -> Generator[WeightBucket]:
        for number, (slots, tensors) in enumerate(pack_buckets(stream.uncast_tensors())):
            flat = self._joined_carrier.bucket_memory(
                number, count_aligned_bytes(slots), tensors[0].device
            )
            for slot, tensor in zip(slots, tensors, strict=True):
                sent = slot.view_in(flat).copy_(tensor)
                stream.note_pending_fingerprint(slot.name, start_fingerprint(sent), sent, columns)
            yield self._joined_carrier.seal_bucket(number, slots)

    def ship_bucket(self, bucket: WeightBucket) -> None:
        self._joined_carrier.ship_bucket(bucket)

    def free_buckets(self) -> None:
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()

    @property
    def _joined_carrier(self) -> BucketCarrier:
        assert self._carrier is not None, "a sender joins a route before it sends"
        return self._carrier


def gather_buckets(stream: OutgoingWeights) -> Generator[WeightBucket]:
    """Takes part in gathering what another process sends, in the same buckets, and drops it."""
    for number, (slots, _) in enumerate(pack_buckets(stream.uncast_tensors())):
        yield WeightBucket(number, count_aligned_bytes(slots), slots)
