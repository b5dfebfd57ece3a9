"""The sender for a process that holds the weights, or a part of them."""

from __future__ import annotations

from collections.abc import Generator

import torch

from lockstep.weight_sync.buckets import WeightBucket, count_aligned_bytes, pack_buckets
from lockstep.weight_sync.carriers import BucketCarrier, SharedFiles, TransferRoute, open_carrier
from lockstep.weight_sync.fingerprints import start_fingerprint
from lockstep.weight_sync.outgoing import OutgoingWeights


class LocalSender(SharedFiles):
    """Sends the weights of this process; see `outgoing.WeightSender`."""

    def __init__(self) -> None:
        self._carrier: BucketCarrier | None = None
        self.route: TransferRoute | None = None

    def open_route(self, route: TransferRoute, opens: bool = True) -> None:
        """See `outgoing.WeightSender`; without `opens`, only helps to gather for another sender."""
        self._carrier = open_carrier(route) if opens else None
        self.route = route

    def fill_buckets(self, stream: OutgoingWeights, columns: bool) -> Generator[WeightBucket]:
        for number, (parts, tensors) in enumerate(pack_buckets(stream.uncast_tensors())):
            flat = self._joined_carrier.bucket_memory(
                number, count_aligned_bytes(parts), tensors[0].device
            )
            for part, tensor in zip(parts, tensors, strict=True):
                sent = part.view_in(flat).copy_(tensor)
                stream.note_pending_fingerprint(part.name, start_fingerprint(sent), sent, columns)
            yield self._joined_carrier.seal_bucket(number, parts)

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
    """Takes part in gathering tensors that another process sends, bucket by bucket; drops them."""
    for number, (parts, _) in enumerate(pack_buckets(stream.uncast_tensors())):
        yield WeightBucket(number, count_aligned_bytes(parts), parts)
