"""The sender in a process that has weights, or a part of them."""

from __future__ import annotations

from collections.abc import Generator

import torch

from lockstep.weight_sync.buckets import Bucket, end_of, pack
from lockstep.weight_sync.carriers import Carrier, Route, SharedFiles, open_carrier
from lockstep.weight_sync.fingerprints import take
from lockstep.weight_sync.outgoing import Outgoing


class LocalSender(SharedFiles):
    """Sends weights of this process, as an `outgoing.Sender` does for others."""

    def __init__(self) -> None:
        self._carrier: Carrier | None = None
        self.route: Route | None = None

    def join(self, route: Route, opens: bool = True) -> None:
        """See `outgoing.Sender`; without `opens`, only helps to gather for another sender."""
        self._carrier = open_carrier(route) if opens else None
        self.route = route

    def buckets(self, stream: Outgoing, columns: bool) -> Generator[Bucket]:
        for number, (slots, tensors) in enumerate(pack(stream.uncast())):
            flat = self._opened.memory(number, end_of(slots), tensors[0].device)
            for slot, tensor in zip(slots, tensors, strict=True):
                sent = slot.of(flat).copy_(tensor)
                stream.note_taken(slot.name, take(sent), sent, columns)
            yield self._opened.seal(number, slots)

    def ship(self, bucket: Bucket) -> None:
        self._opened.ship(bucket)

    def finish(self) -> None:
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()

    @property
    def _opened(self) -> Carrier:
        assert self._carrier is not None, "a sender joins a route before it sends"
        return self._carrier


def gather_buckets(stream: Outgoing) -> Generator[Bucket]:
    """Takes part in gathering what another process sends, in the same buckets, and drops it."""
    for number, (slots, _) in enumerate(pack(stream.uncast())):
        yield Bucket(number, end_of(slots), slots)
